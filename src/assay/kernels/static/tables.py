"""The names that static checks know: what does the work of a kernel, what reaches outside it, what is harmless.

Names are dotted and resolved through imports first, so `F.relu`, `fn.relu` and `relu` may all be
`torch.nn.functional.relu`. A table maps a name, or a prefix of names, to the kind of finding it is.
"""

from __future__ import annotations

from assay.kernels.static.findings import Kind, Severity


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


HEAVY_METHODS = _words(
    "matmul mm bmm mv addmm addmm_ addmv addbmm baddbmm addr dot vdot inner outer ger chain_matmul "
    "__matmul__ __rmatmul__ __imatmul__ "
    "softmax log_softmax logsumexp logcumsumexp cumsum cumsum_ cumprod cumprod_ cummax cummin "
    "sort argsort topk kthvalue median nanmedian quantile histc bincount "
    "norm renorm var std var_mean std_mean conv1d conv2d conv3d cdist pdist "
    "scatter_add scatter_add_ scatter_reduce scatter_reduce_ index_add index_add_ index_reduce "
    "cholesky inverse pinverse svd qr det logdet matrix_exp matrix_power istft stft"
)
"""Methods of a tensor that do the work a kernel is asked for."""

HEAVY_FUNCTIONS = HEAVY_METHODS | _words(
    "einsum tensordot kron linear bilinear convolution conv_transpose1d conv_transpose2d conv_transpose3d conv_tbc "
    "batch_norm layer_norm group_norm instance_norm native_batch_norm native_layer_norm native_group_norm rms_norm "
    "max_pool1d max_pool2d max_pool3d avg_pool1d adaptive_avg_pool1d adaptive_max_pool1d embedding embedding_bag "
    "dropout native_dropout cosine_similarity pairwise_distance cosine_embedding_loss ctc_loss hinge_embedding_loss "
    "kl_div margin_ranking_loss triplet_margin_loss poisson_nll_loss binary_cross_entropy_with_logits "
    "lstm gru rnn_tanh rnn_relu lstm_cell gru_cell rnn_tanh_cell rnn_relu_cell logaddexp trapezoid "
    "scaled_dot_product_attention multi_head_attention_forward vmap cov corrcoef searchsorted unique prelu celu selu "
    "rrelu threshold"
)
"""Functions of `torch` that do."""

LIGHT = _words(
    "relu relu_ sigmoid sigmoid_ tanh tanh_ exp exp_ exp2 expm1 log log_ log2 log10 log1p sqrt sqrt_ rsqrt rsqrt_ "
    "sin cos tan asin acos atan sinh cosh erf erfc erfinv abs abs_ neg neg_ square reciprocal sign floor ceil round "
    "clamp clamp_ clip hardshrink softshrink sum nansum mean nanmean prod max min amax amin aminmax argmax argmin all "
    "any count_nonzero add add_ sub sub_ mul mul_ multiply div div_ divide true_divide pow pow_ fmod remainder maximum "
    "minimum fmax fmin where lerp addcmul addcdiv masked_fill masked_fill_ gather index_select take take_along_dim "
    "cross diff cumulative_trapezoid rot90 tril triu triu_ tril_ hypot logit sinc xlogy"
)
"""Element-wise operations and simple reductions: small finishing touches of honest kernels, or the whole task."""

COMPUTE_PREFIXES: dict[str, Kind] = {
    "torch.nn.functional": "library_call",
    "torch.linalg": "library_call",
    "torch.fft": "library_call",
    "torch.sparse": "library_call",
    "torch.special": "library_call",
    "torch.func": "library_call",
    "torch.nested": "library_call",
    "torch.masked": "library_call",
    "torch.sparse_coo_tensor": "library_call",
    "torch.sparse_csr_tensor": "library_call",
    "torch.sparse_csc_tensor": "library_call",
    "torch.sparse_bsr_tensor": "library_call",
    "torch.sparse_bsc_tensor": "library_call",
    "torch.sparse_compressed_tensor": "library_call",
    "torch.cond": "library_call",
    "torch.while_loop": "library_call",
    "torch.ops.aten": "library_call",
    "torch.ops.prims": "library_call",
    "torch.ops.higher_order": "library_call",
    "torch.ops.mkldnn": "library_call",
    "torch.ops.mkl": "library_call",
    "torch.ops.quantized": "library_call",
    "torch._refs": "library_call",
    "torch._prims": "library_call",
    "torch._decomp": "library_call",
    "torch._VF": "library_call",
    "torch._C._nn": "library_call",
    "torch.backends.mkldnn": "library_call",
    "torch.ao": "library_call",
    "torch.nn.quantized": "library_call",
    "torch.nn.attention": "library_call",
    "torch.nn.modules": "library_layer",
    "torch.compile": "compiler",
    "torch.jit": "compiler",
    "torch._dynamo": "compiler",
    "torch._inductor": "compiler",
    "torch.export": "compiler",
    "torch.fx": "compiler",
    "torch.onnx": "compiler",
    "torch.utils.mkldnn": "compiler",
}

HARMLESS_LAYERS = _words(
    "Module Parameter ParameterList ParameterDict Buffer UninitializedParameter UninitializedBuffer Identity Flatten "
    "Unflatten init utils functional modules parameter attention parallel quantized"
)
"""Names of `torch.nn` that are not layers with work to do (or that are in another table)."""

HARMLESS_FUNCTIONAL = frozenset({"torch.nn.functional.pad", "torch.nn.functional.one_hot"})
"""Functions that move data or prepare it; worth a suspicion, no more."""

NAMES: dict[str, tuple[Kind, Severity]] = {
    "torch.cuda.Stream": ("side_stream", "cheat"),
    "torch.cuda.stream": ("side_stream", "cheat"),
    "torch.cuda.streams": ("side_stream", "cheat"),
    "torch.cuda.StreamContext": ("side_stream", "cheat"),
    "torch.cuda.ExternalStream": ("side_stream", "cheat"),
    "torch.cuda.set_stream": ("side_stream", "cheat"),
    "torch.Stream": ("side_stream", "cheat"),
    "torch.cuda.CUDAGraph": ("cuda_graph", "cheat"),
    "torch.cuda.graph": ("cuda_graph", "cheat"),
    "torch.cuda.graphs": ("cuda_graph", "cheat"),
    "torch.cuda.make_graphed_callables": ("cuda_graph", "cheat"),
    "torch.cuda.Event": ("timing", "suspect"),
    "torch.Event": ("timing", "suspect"),
    "torch.utils.benchmark": ("timing", "suspect"),
    "torch.profiler": ("timing", "suspect"),
    "torch.autograd.profiler": ("timing", "suspect"),
    "triton.testing": ("timing", "suspect"),
    "torch.cuda.caching_allocator_alloc": ("memory_probe", "cheat"),
    "torch.cuda.caching_allocator_delete": ("memory_probe", "cheat"),
    "torch.cuda.memory_snapshot": ("memory_probe", "cheat"),
    "torch.cuda.memory": ("memory_probe", "cheat"),
    "torch.cuda.cudart": ("memory_probe", "cheat"),
    "torch.cuda.MemPool": ("memory_probe", "cheat"),
    "torch.cuda.list_gpu_processes": ("memory_probe", "cheat"),
    "torch.UntypedStorage": ("memory_probe", "suspect"),
    "torch.as_strided": ("memory_probe", "suspect"),
    "torch.from_dlpack": ("memory_probe", "suspect"),
    "torch.utils.dlpack": ("memory_probe", "suspect"),
    "torch.frombuffer": ("memory_probe", "suspect"),
    "torch.from_file": ("file_access", "cheat"),
    "torch.load": ("pickle", "cheat"),
    "torch.save": ("pickle", "cheat"),
    "torch.serialization": ("pickle", "cheat"),
    "torch.package": ("pickle", "cheat"),
    "torch.hub": ("network", "cheat"),
    "torch.distributed": ("threads", "cheat"),
    "torch.multiprocessing": ("threads", "cheat"),
    "torch.futures": ("threads", "cheat"),
    "torch.nn.parallel": ("threads", "cheat"),
    "torch.utils.data": ("threads", "cheat"),
    "torch._C": ("introspection", "cheat"),
    "torch._tensor": ("introspection", "cheat"),
    "torch.overrides": ("tensor_subclass", "cheat"),
    "torch.utils._python_dispatch": ("tensor_subclass", "cheat"),
    "torch.Tensor._make_subclass": ("tensor_subclass", "cheat"),
    "torch.Tensor._make_wrapper_subclass": ("tensor_subclass", "cheat"),
    "torch.Tensor.as_subclass": ("tensor_subclass", "cheat"),
    "torch.ops.load_library": ("native_code", "cheat"),
    "torch.classes": ("native_code", "cheat"),
    "torch.library.Library": ("monkeypatch", "cheat"),
    "torch.library.impl": ("monkeypatch", "cheat"),
    "torch.library.register_kernel": ("monkeypatch", "cheat"),
    "torch.set_default_dtype": ("global_state", "suspect"),
    "torch.set_default_device": ("global_state", "suspect"),
    "torch.set_default_tensor_type": ("global_state", "suspect"),
    "torch.set_num_threads": ("global_state", "suspect"),
    "torch.set_float32_matmul_precision": ("global_state", "suspect"),
    "torch.use_deterministic_algorithms": ("global_state", "suspect"),
    "torch.manual_seed": ("global_state", "suspect"),
    "torch.cuda.manual_seed": ("global_state", "suspect"),
    "torch.cuda.manual_seed_all": ("global_state", "suspect"),
    "torch.set_rng_state": ("global_state", "suspect"),
    "torch.get_rng_state": ("global_state", "suspect"),
    "torch.random": ("global_state", "suspect"),
    "torch.autocast": ("global_state", "suspect"),
    "torch.amp": ("global_state", "suspect"),
    "torch.initial_seed": ("global_state", "cheat"),
    "torch.seed": ("global_state", "cheat"),
    "builtins.eval": ("dynamic_code", "cheat"),
    "builtins.exec": ("dynamic_code", "cheat"),
    "builtins.compile": ("dynamic_code", "cheat"),
    "builtins.__import__": ("dynamic_code", "cheat"),
    "builtins.__build_class__": ("dynamic_code", "cheat"),
    "builtins.__loader__": ("introspection", "cheat"),
    "builtins.__spec__": ("introspection", "cheat"),
    "builtins.__builtins__": ("introspection", "cheat"),
    "builtins.globals": ("obfuscation", "cheat"),
    "builtins.locals": ("obfuscation", "suspect"),
    "builtins.vars": ("obfuscation", "suspect"),
    "builtins.open": ("file_access", "cheat"),
    "builtins.input": ("file_access", "cheat"),
    "builtins.breakpoint": ("process", "cheat"),
    "builtins.exit": ("process", "cheat"),
    "builtins.quit": ("process", "cheat"),
    "builtins.SystemExit": ("process", "cheat"),
    "builtins.KeyboardInterrupt": ("process", "cheat"),
    "builtins.BaseException": ("fallback", "suspect"),
    "builtins.__file__": ("file_access", "suspect"),
    "sys.modules": ("introspection", "cheat"),
    "sys._getframe": ("introspection", "cheat"),
    "sys._current_frames": ("introspection", "cheat"),
    "sys.exc_info": ("introspection", "suspect"),
    "sys.settrace": ("introspection", "cheat"),
    "sys.setprofile": ("introspection", "cheat"),
    "sys.meta_path": ("monkeypatch", "cheat"),
    "sys.path_hooks": ("monkeypatch", "cheat"),
    "sys.path_importer_cache": ("monkeypatch", "cheat"),
    "sys.path": ("monkeypatch", "cheat"),
    "sys.addaudithook": ("monkeypatch", "cheat"),
    "sys.excepthook": ("monkeypatch", "cheat"),
    "sys.unraisablehook": ("monkeypatch", "cheat"),
    "sys.displayhook": ("monkeypatch", "cheat"),
    "sys.setrecursionlimit": ("global_state", "suspect"),
    "sys.exit": ("process", "cheat"),
    "sys.argv": ("environment", "cheat"),
    "sys.stdin": ("file_access", "cheat"),
    "sys.stdout": ("file_access", "suspect"),
    "sys.stderr": ("file_access", "suspect"),
    "os.environ": ("environment", "suspect"),
    "os.getenv": ("environment", "suspect"),
    "os.cpu_count": ("environment", "suspect"),
    "os.path": ("file_access", "suspect"),
    "os": ("process", "cheat"),
    "types.FunctionType": ("dynamic_code", "cheat"),
    "types.CodeType": ("dynamic_code", "cheat"),
    "types.MethodType": ("monkeypatch", "suspect"),
    "types.ModuleType": ("monkeypatch", "cheat"),
    "types.CellType": ("introspection", "cheat"),
    "operator.attrgetter": ("obfuscation", "cheat"),
    "operator.methodcaller": ("obfuscation", "cheat"),
    "operator.matmul": ("library_call", "cheat"),
    "operator.imatmul": ("library_call", "cheat"),
    "functools.singledispatch": ("obfuscation", "suspect"),
    "contextlib.suppress": ("fallback", "suspect"),
    "triton.runtime.driver": ("introspection", "suspect"),
    "triton.runtime.cache": ("replay_cache", "cheat"),
    "triton.runtime.interpreter": ("introspection", "cheat"),
    "triton.runtime.jit.JITFunction": ("introspection", "suspect"),
    "triton.backends": ("introspection", "suspect"),
    "triton.knobs": ("global_state", "suspect"),
    "triton.set_allocator": ("global_state", "suspect"),
    "triton.compiler": ("introspection", "suspect"),
    "triton.tools.disasm": ("process", "cheat"),
}
"""Longest prefix wins; a bare module name stands for whatever of it no longer entry names."""

ALLOWED_MODULES = _words(
    "__future__ abc collections contextlib copy dataclasses enum functools itertools logging math numbers operator os "
    "packaging random string sys textwrap torch triton types typing typing_extensions warnings numpy"
)
"""Top-level modules that may be imported; what is used of them is looked at by itself."""

MODULES: dict[str, Kind] = {
    **dict.fromkeys(_words("ctypes cffi _ctypes mmap numba pybind11 cython cppyy"), "native_code"),
    **dict.fromkeys(_words("subprocess pty posix _posixsubprocess popen2 pexpect resource"), "process"),
    **dict.fromkeys(_words("pip setuptools ensurepip venv site sysconfig faulthandler"), "process"),
    **dict.fromkeys(_words("threading _thread multiprocessing concurrent asyncio sched queue"), "threads"),
    **dict.fromkeys(_words("gc inspect traceback tracemalloc weakref linecache dis"), "introspection"),
    **dict.fromkeys(_words("ast code codeop symtable pkgutil pdb bdb trace"), "introspection"),
    **dict.fromkeys(_words("importlib imp runpy zipimport marshal _imp"), "dynamic_code"),
    **dict.fromkeys(_words("builtins __builtin__ __main__"), "introspection"),
    **dict.fromkeys(_words("pickle cPickle _pickle shelve dill cloudpickle copyreg joblib"), "pickle"),
    **dict.fromkeys(_words("socket ssl http urllib requests httpx ftplib smtplib"), "network"),
    **dict.fromkeys(_words("select selectors socketserver xmlrpc modal huggingface_hub"), "network"),
    **dict.fromkeys(_words("signal atexit"), "signals"),
    **dict.fromkeys(_words("io tempfile shutil pathlib glob fcntl fileinput sqlite3"), "file_access"),
    **dict.fromkeys(_words("time timeit _time datetime cProfile profile"), "timing"),
    **dict.fromkeys(_words("base64 codecs zlib lzma bz2 binascii rot13"), "obfuscation"),
    **dict.fromkeys(_words("scipy jax cupy tensorflow sklearn pandas mlx tvm"), "foreign_library"),
    **dict.fromkeys(_words("vllm flash_attn xformers apex transformers torchvision"), "foreign_library"),
    **dict.fromkeys(_words("liger_kernel bitsandbytes deepspeed cudnn flashinfer"), "foreign_library"),
    **dict.fromkeys(_words("transformer_engine sgl_kernel fla mamba_ssm torchao"), "foreign_library"),
    **dict.fromkeys(_words("reference reference_model ref problem problems solution"), "imports_reference"),
    **dict.fromkeys(_words("kernelbench KernelBench assay model original_model task"), "imports_reference"),
}
"""Top-level modules that no kernel needs, and what importing one is. `time` and `io` are only suspect (below)."""

SUSPECT_MODULES = frozenset({"time", "timeit", "datetime", "io", "pathlib", "tempfile", "resource", "traceback"})
"""Modules of `MODULES` whose import alone proves nothing; patching or reading through them is found by itself."""

ATTRIBUTES: dict[str, tuple[Kind, Severity]] = {
    **dict.fromkeys(
        _words(
            "__globals__ __code__ __closure__ __subclasses__ __mro__ __bases__ __base__ __builtins__ __func__ __self__ "
            "__defaults__ __kwdefaults__ __getattribute__ __reduce__ __reduce_ex__ __loader__ __spec__ f_back f_locals "
            "f_globals f_code f_builtins gi_frame cr_frame ag_frame tb_frame tb_next co_code co_consts gi_code mro"
        ),
        ("introspection", "cheat"),
    ),
    **dict.fromkeys(
        _words("__torch_function__ __torch_dispatch__ _make_subclass _make_wrapper_subclass as_subclass"),
        ("tensor_subclass", "cheat"),
    ),
    **dict.fromkeys(_words("__import__ __build_class__"), ("dynamic_code", "cheat")),
    **dict.fromkeys(_words("__dict__ __getattr__ __setattr__ __delattr__"), ("obfuscation", "suspect")),
    **dict.fromkeys(_words("set_ untyped_storage storage _typed_storage _storage"), ("memory_probe", "suspect")),
    **dict.fromkeys(
        _words("write_text write_bytes read_text read_bytes mkdir rmdir unlink symlink_to hardlink_to"),
        ("file_access", "cheat"),
    ),
    **dict.fromkeys(_words("apply_ map_ map2_"), ("library_call", "cheat")),
    "as_strided": ("memory_probe", "suspect"),
    "as_strided_": ("memory_probe", "suspect"),
    "share_memory_": ("memory_probe", "cheat"),
    "elapsed_time": ("timing", "suspect"),
    "record_stream": ("side_stream", "suspect"),
    "wait_stream": ("side_stream", "suspect"),
}
"""Attributes that mean the same on whatever object they are read."""

NUMPY_HARMLESS = _words(
    "float16 float32 float64 int8 int16 int32 int64 uint8 bool_ pi e inf nan prod ceil floor log2 sqrt log exp "
    "ndarray dtype iinfo finfo newaxis integer floating number"
)
"""Names of numpy that serve for sizes and constants; the rest would be a library doing the work on the host."""

TRITON_JIT = frozenset({"triton.jit", "triton.runtime.jit", "triton.runtime.jit.jit"})
CACHES = frozenset({"functools.cache", "functools.lru_cache", "functools.cached_property"})

SETTABLE = ("torch.backends.cuda", "torch.backends.cudnn", "torch.backends.mkldnn", "torch.backends.opt_einsum")
"""Switches that may be assigned: a matter of precision, not of patching; set in the candidate's process alone."""
