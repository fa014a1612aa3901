"""A training loop under compiled autograd: DTensor parameters, gradient-clipping hooks, activation
offload."""
