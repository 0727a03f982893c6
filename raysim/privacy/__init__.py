"""What a run gives away: attacks on models and shared data, certified ε, and the figures of both."""
