"""The folder that `nnUNet_extTrainer` names: nnU-Net imports every module in it, by its own name.

So modules here have names that no other package has, and import by full names.
"""
