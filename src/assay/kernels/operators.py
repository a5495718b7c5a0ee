"""Kinds of PyTorch's operators, by name: which of them are the work that a kernel is asked to replace.

`heavy` operators do in one call what a problem asks for (products, convolutions, attention, norms, softmax, pooling,
scans, sorts, transforms, losses, recurrent layers); a candidate whose work is in them has written no kernel. `light`
ones are pointwise operators and plain reductions, which an honest candidate may use beside its kernels. `free` ones
move, view, make or cast tensors and compute nothing. Names are those of ATen without overload and without the
underscore of in-place variants (`normal_name`); those of other libraries keep their prefix (`torchvision::nms`).
"""

from __future__ import annotations

import functools
import re
from typing import Literal

Draw = tuple[str, tuple[float, ...]]
"""A distribution and its numbers: `uniform` from 0 to 1, whichever operator draws it."""
Kind = Literal[
    "product",
    "convolution",
    "attention",
    "recurrent",
    "norm",
    "softmax",
    "pooling",
    "scan",
    "sort",
    "fft",
    "linalg",
    "embedding",
    "loss",
    "resample",
    "reduction",
    "pointwise",
    "index",
    "free",
]

HEAVY: frozenset[Kind] = frozenset(
    (
        *("product", "convolution", "attention", "recurrent", "norm", "softmax", "pooling", "scan", "sort", "fft"),
        *("linalg", "embedding", "loss", "resample"),
    )
)
"""Kinds that a problem may be about, and that only a kernel of the candidate's own should do."""

_PATTERNS: tuple[tuple[Kind, str], ...] = (
    ("attention", r".*(attention|_attn).*|_transformer_encoder_layer_fwd"),
    ("recurrent", r".*(lstm|gru)(_cell|_mps)?|.*_rnn(_layer)?|rnn_(relu|tanh)(_cell)?|quantized_rnn_\w+"),
    ("convolution", r".*conv(olution)?([123]d|_tbc|_depthwise[23]d|_transpose[123]d|_dilated[23]d)?(_forward|_mode)?"),
    (
        "convolution",
        r".*convolution_(add_)?relu|.*convolution_(transpose|overrideable)|.*spatial_convolution|col2im|im2col",
    ),
    ("embedding", r".*embedding_bag.*|segment_reduce"),
    (
        "norm",
        r".*(batch|layer|group|instance|rms)_norm.*|.*vector_norm|linalg_matrix_norm|(linalg|native|nuclear)_norm",
    ),
    ("norm", r"norm|norm_except_dim|_weight_norm.*|frobenius_norm|renorm|_foreach_norm|linalg__powsum|_foreach_powsum"),
    ("norm", r"cosine_similarity|pairwise_distance"),
    ("softmax", r".*softmax.*|.*logsumexp"),
    ("pooling", r".*(max|avg)_(un)?pool[123]d.*"),
    ("scan", r"cumsum|cumprod|cummax|cummin|_cummax_helper|_cummin_helper|_?logcumsumexp|cumulative_trapezoid"),
    ("sort", r"sort|argsort|msort|topk|kthvalue|.*median|mode|.*quantile|_?unique.*|histc|histogram.*|searchsorted"),
    ("sort", r"bucketize|bincount"),
    ("fft", r"_?fft_(?!fftfreq|rfftfreq|\w*shift).*|stft|istft"),
    ("product", r"linalg_(matmul|multi_dot|vecdot)|_sparse_sparse_matmul"),
    (
        "linalg",
        r"_?linalg_.*|cholesky.*|_cholesky.*|inverse|pinverse|det|logdet|slogdet|lu_solve|lu_unpack|_lu_with_info",
    ),
    (
        "linalg",
        r"triangular_solve|svd|qr|geqrf|orgqr|ormqr|matrix_exp|matrix_power|_compute_linear_combination|_spsolve",
    ),
    ("loss", r".*_loss(_nd|[12]d)?(_forward)?|_use_cudnn_ctc_loss|binary_cross_entropy.*|kl_div|.*loss"),
    ("resample", r"_?upsample_.*|.*grid_sampler.*|affine_grid_generator|grid_sample"),
    (
        "product",
        r".*(add|_sparse_|ss|_|hs|_foreach_)?(mm|bmm)(_v2|_for_cpu|_search|_reduce_impl|_with_scales_and_zeros)?",
    ),
    ("product", r"(add|b|h|_dyn_quant_|chain_)?matmul\w*|addm[mv]|_addmm_activation|mv|v?dot|inner|outer|ger|addr"),
    ("product", r".*linear|linear_\w+weight.*|fbgemm_linear\w*|tensordot|einsum|kron|bilinear"),
    ("product", r"_trilinear|_?cdist(_forward)?|_?pdist(_forward)?|_euclidean_dist|addb?bmm|baddbmm|\w*grouped_mm\w*"),
    (
        "reduction",
        r"sum|nansum|sum_to_size|mean|nanmean|prod|a?max|a?min|_?aminmax|argmax|argmin|all|any|var|std|trace",
    ),
    (
        "reduction",
        r"_sparse_sum|_sparse_csr_(sum|prod)|var_mean|std_mean|count_nonzero|equal|allclose|_is_(all|any)_true|_foreach_max|dist",
    ),
    (
        "index",
        r"embedding|gather|take|take_along_dim|_?(unsafe_)?(masked_)?index(_\w+)?|masked_select|nonzero\w*|argwhere",
    ),
    ("index", r"scatter\w*|put|_index_put_impl|masked_scatter|one_hot"),
    (
        "free",
        r"(new_)?(empty|zeros|ones|full)(_like|_strided|_permuted)?|_empty\w*|_efficientzerotensor|scalar_tensor|arange|range"
        r"|linspace|eye|zero|fill|_foreach_zero|tril_indices|triu_indices|clone|_lazy_clone|copy|_copy_from\w*|_foreach_copy"
        r"|_foreach_clone|_to_copy|_to_cpu|_pin_memory|pin_memory|contiguous|to|type_as|_local_scalar_dense|item"
        r"|lift\w*|\w*detach|alias|data|set|resize\w*|_resize_output|is_\w+|cat|concat\w*|_?stack|hstack|vstack|dstack"
        r"|column_stack|row_stack|_chunk_cat|constant_pad_nd|pad|_pad_\w+|(reflection|replication)_pad[123]d|repeat"
        r"|repeat_interleave|tile|roll|flip|fliplr|flipud|rot90|\w+_copy|_unsafe_view|_reshape\w*|reshape\w*|select_scatter"
        r"|slice_scatter|diagonal_scatter|as_strided_scatter|diag_embed|diag|diagflat|block_diag|_assert\w*|_functional_\w+"
        r"|pixel_(un)?shuffle|(native_)?channel_shuffle|_?conj|_?neg_view|resolve_(conj|neg)|complex|record_stream"
        r"|_?(has|version|nnz|dim[IV]|values|indices)\w*|size|sym_\w+|stride|storage_offset|numel|dim|_fused_sdp_choice"
        r"|cudnn_is_acceptable|result_type|can_cast|promote_types|meshgrid|broadcast_tensors|view\w*|_debug_\w+|unfold"
        r"|t|m?T|m?H|permute|transpose|swap(axes|dims)|moveaxis|movedim|(un)?squeeze|select|slice|narrow|expand(_as)?|diagonal"
        r"|as_strided|(unsafe_)?(split(_with_sizes)?|chunk)|tensor_split|[vhd]split|unbind|(un)?flatten|ravel|real|imag"
        r"|broadcast_to|adjoint|atleast_[123]d|numpy_T|matrix_H|unsafe_split|_cast_\w+|dense_dim|sparse_\w*tensor\w*"
        r"|requires_grad|retain_grad|output_nr|mkldnn_reorder\w+|_mkldnn_\w+|to_mkldnn|_?to_dense|_?to_sparse\w*|_print",
    ),
)
"""First match wins. Whatever matches nothing is pointwise."""

MOST_KEPT = 2048
"""Names whose kind is kept: PyTorch has as many, and a forged program or a problem may make up any number."""

_COMPILED = tuple((kind, re.compile(pattern)) for kind, pattern in _PATTERNS)


def normal_name(name: str) -> str:
    """The operator behind a name as PyTorch's schemas spell it: `aten::relu_` is `relu`, `aten::__and__` stays."""
    library, _, rest = name.partition("::")
    if not rest:
        library, rest = "aten", name
    rest = rest.partition(".")[0]
    if rest.endswith("_") and not rest.endswith("__"):
        rest = rest[:-1]
    return rest if library == "aten" else f"{library}::{rest}"


@functools.lru_cache(maxsize=MOST_KEPT)
def kind_of(name: str) -> Kind:
    """The kind of an operator, named as `normal_name` does. A gradient has the kind of what it is the gradient of."""
    base = re.sub(r"(_double)?_backward(_\w+)?$", "", name.rpartition("::")[2])
    for kind, pattern in _COMPILED:
        if pattern.fullmatch(base):
            return kind
    return "pointwise"


def is_heavy(name: str) -> bool:
    """Whether an operator does, in one call, what a kernel is asked for."""
    return kind_of(name) in HEAVY
