"""Local training of one client, alone or fused with others: loops, optimisers, devices, profiling."""
