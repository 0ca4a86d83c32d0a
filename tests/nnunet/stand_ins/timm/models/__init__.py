"""The models that nnU-Net names."""
