"""In the place of timm, which needs torchvision: nnU-Net's `primus` imports it, no test uses it."""
