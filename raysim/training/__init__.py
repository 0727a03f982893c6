"""One client's local training, alone or fused with others, and what it computes with: optimisers, device, profiling."""
