"""segcal inside other people's training programs: nnU-Net trainers, MONAI handlers."""
