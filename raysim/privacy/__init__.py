"""Figures of what a run gives away: attacks on models and shared data, and certified ε."""
