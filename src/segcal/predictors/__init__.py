"""Predictors: anything that gives predictions for cases."""
