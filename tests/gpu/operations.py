"""Operations that CUDA does deterministically in torch 2.13 with the settings of training/device.py, and why.

An operation that is not here was not looked up yet. Look for it in the lists of `torch.use_deterministic_algorithms`
and, if it is in neither, for atomic additions in its kernel; what cannot be deterministic raises there in any case.
"""

_REASONS = {
    "one thread writes each element": """
        __rshift__ _foreach_add_ _foreach_copy_ _fused_adam_ _fused_sgd_ _prelu_kernel _prelu_kernel_backward
        _to_copy abs add add_ affine_grid_generator arange avg_pool2d bitwise_and bitwise_not bitwise_or
        bitwise_xor cat clamp clamp_ clamp_min_ clone constant_pad_nd copy_ cos deg2rad div div_ eq exp eye
        fill_ floor full full_like ge gt leaky_relu leaky_relu_backward lerp lerp_ log10 log_ lt masked_fill_
        minimum mse_loss_backward mul mul_ ne neg new_full new_ones new_zeros nll_loss_backward ones ones_like
        pow reciprocal relu remainder repeat round_ rsqrt rsub scalar_tensor searchsorted select_backward sgn
        sigmoid sign sigmoid_backward sin slice_backward softplus softplus_backward sqrt sqrt_ stack sub sub_ tanh
        tanh_backward threshold_backward where zero_ zeros zeros_like
    """,
    "a reduction in a fixed order": """
        _cdist_forward _log_softmax _log_softmax_backward_data _softmax _softmax_backward_data all amax amin
        aminmax argmax argmin linalg_vector_norm logsumexp max mean mse_loss native_batch_norm
        native_batch_norm_backward nll_loss_forward sum
    """,
    "cuBLAS, with CUBLAS_WORKSPACE_CONFIG set": "addmm baddbmm bmm mm",
    "cuDNN, restricted to deterministic algorithms": "convolution convolution_backward",
    "reads at given places": "gather index max_pool2d_with_indices",
    "each input pixel collects its own gradients": "max_pool2d_with_indices_backward",
    "sorted first, in deterministic mode": "index_put_",
    "forward only; its gradient raises": "grid_sampler_2d upsample_linear1d",
    "of whole numbers, or a stable order": "nonzero sort",
}

DETERMINISTIC = {operation: why for why, operations in _REASONS.items() for operation in operations.split()}
