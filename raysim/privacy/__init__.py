"""Measures of what a model and shared data reveal: attacks, distances to training data, and certified ε."""
