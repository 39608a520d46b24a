"""Root causes: sentences that explain a failure by themselves. Texts of SGLang 0.5.9 to 0.5.23, torch, FlashInfer, Triton, NCCL."""

from runner.engines.diagnose.roots_runtime import OUT_OF_MEMORY, PROXY, RUNTIME
from runner.engines.diagnose.rules import Rule, rule

_ERROR = r"^(?:[\w.]+\.)?(?:ValueError|AssertionError|NotImplementedError|RuntimeError|Exception|TypeError|ImportError): "
_REFUSED = r"^(?:[\w.]+\.)?(?:ValueError|AssertionError|NotImplementedError)\b"

ARGUMENTS: tuple[Rule, ...] = (
    rule("unknown_cli_option", r"error: (?:unrecognized arguments|ambiguous option|argument \S+.*: invalid choice)", 0.97, 1),
    rule(
        "unknown_cli_option", r"error: (?:argument \S+.*: (?:invalid|expected|not allowed)|the following arguments are required)", 0.85, 1
    ),
    rule("unknown_cli_option", r"ServerArgs(?:\.__init__\(\))? got an unexpected keyword argument", 0.95, 1),
    rule("rejected_argument_combination", r"When enabling two batch overlap|SBO \(single batch overlap\) is not supported", 0.97, 1),
    rule("rejected_argument_combination", r"only supported with flashinfer_cutlass moe runner backend", 0.95, 1),
    rule(
        "unsupported_gpu_architecture",
        r"requires SM90 or SM10X|(?:is|are) (?:only )?(?:not )?supported (?:only )?on (?:NVIDIA )?(?:SM|sm_?\d|Hopper|Blackwell|Ampere)"
        r"|requires (?:SM|sm_?)\d|requires SM ?>=|backend is not supported on Blackwell|fa3' backend is not supported",
        0.92,
        2,
    ),
    rule(
        "quantization_error",
        _ERROR + r"(?:Invalid quantization|Unknown quantization method|Quantization method specified in the model config)",
        0.95,
        1,
    ),
    rule(
        "rejected_argument_combination",
        _ERROR
        + r".*(?:not supported (?:with|when|for|together|under|by|in)\b|cannot be (?:used|enabled|combined|set)|can't be used|(?:only|currently) support(?:ed|s)\b"
        r"|incompatible with|not compatible with|mutually exclusive|is required (?:when|for|with|by)|must be (?:used|set|enabled|specified)|requires? --|please (?:set|use|remove|disable|add) --"
        r"|does not support|should not be (?:set|used)|must be divisible|divisible by|conflict)",
        0.75,
        4,
        frames=r"server_args\.py|arg_groups|check_server_args|__post_init__|_handle_|validation_hook|scheduler\.py|model_runner\.py|moe/utils\.py|spec",
    ),
    rule(
        "rejected_argument_combination",
        _REFUSED,
        0.8,
        6,
        frames=r"server_args\.py.*\n(?:.*\n)*?.*(?:raise|assert)|check_server_args|arg_groups/|validation_hook",
    ),
    rule(
        "rejected_argument_combination",
        _ERROR
        + r"(?:.*--[a-z][a-z\-]+.*(?:not supported|cannot|can't|only support|requires?\b|incompatible|conflict|exclusive)|.*(?:cannot|can't|not supported|only support|requires?\b|incompatible|exclusive|try removing|disable).*--[a-z][a-z\-]+)",
        0.7,
        5,
    ),
    rule("rejected_argument_combination", r"Unsupported unit: .*, support B, KB, MB, GB only", 0.95, 1),
)

PACKAGES: tuple[Rule, ...] = (
    rule(
        "kernel_version_mismatch",
        r"is installed with version .* which is less than the minimum required version|with minimum required version .* is not installed",
        0.97,
        1,
    ),
    rule("kernel_version_mismatch", r"reinstall the latest version|Please uninstall the old version", 0.9, 2),
    rule(
        "kernel_version_mismatch",
        r"(?:ImportError|OSError|AttributeError|RuntimeError).*undefined symbol|Could not load any common_ops library",
        0.93,
        1,
    ),
    rule("kernel_version_mismatch", r"flashinfer[\w\-]* version .*(?:does not match|mismatch)", 0.93, 1),
    rule(
        "kernel_version_mismatch",
        r"(?:ImportError: cannot import name .* from|ModuleNotFoundError: No module named) '(?:sgl_kernel|flashinfer|flash_attn|deep_gemm|deep_ep|torch|triton|sgl_deep_gemm|tvm_ffi)\b",
        0.85,
        2,
    ),
    rule(
        "kernel_version_mismatch",
        r"'_OpNamespace' '(?:sgl_kernel|_C\w*)' object has no attribute|module '(?:flashinfer|sgl_kernel|deep_gemm)[\w.]*' has no attribute",
        0.88,
        2,
    ),
    rule("kernel_version_mismatch", r"operator (?:sgl_kernel|torchvision)::\w+ does not exist", 0.88, 2),
    rule(
        "kernel_version_mismatch",
        r"TypeError: .*(?:got an unexpected keyword argument|missing \d+ required positional|takes \d+ positional arguments? but)",
        0.75,
        3,
        frames=r"flashinfer|sgl_kernel|deep_gemm|flash_attn",
    ),
    rule(
        "kernel_version_mismatch",
        r"driver version is insufficient|NVIDIA driver on your system is too old|forward compatibility was attempted|unsupported display driver|compiled with an unsupported toolchain",
        0.85,
        2,
    ),
    rule(
        "kernel_version_mismatch",
        r"(?:ImportError|OSError): .*(?:version `(?:GLIBC|GLIBCXX|CXXABI)\S*' not found|lib(?:cudart|cublas|nvrtc|cudnn|nvJitLink|cusparse)\S*: cannot open shared object)",
        0.85,
        2,
    ),
)

COMPILER: tuple[Rule, ...] = (
    rule(
        "toolchain_too_old",
        r"ptxas fatal.*(?:is not defined for option 'gpu-name'|Unsupported \.version|Unsupported \.target)|Value 'sm_\w+' is not defined for option",
        0.95,
        1,
    ),
    rule(
        "toolchain_too_old",
        r"nvcc fatal.*Unsupported gpu architecture|Unsupported gpu architecture 'compute_|Unsupported \.version [\d.]+; current version",
        0.95,
        1,
    ),
    rule("toolchain_too_old", r"ptxas'.*--gpu-name=sm_1\d\d\w*.*non-zero exit status", 0.8, 3),
    rule(
        "toolchain_too_old",
        r"unsupported GNU version|unrecognized command.line option .-std=c\+\+|requires? (?:CUDA|nvcc|NVCC|ptxas)(?: [Tt]oolkit)?(?: version)? ?(?:>=|v?\d[\d.]* or (?:newer|later|higher)|at least)",
        0.92,
        1,
    ),
    rule(
        "toolchain_too_old",
        r"(?:CUDA|nvcc|NVCC)(?: [Tt]oolkit)?(?: version)? (?:should|must) be (?:>=|at least|greater|higher|newer)",
        0.9,
        1,
    ),
    rule(
        "jit_compile_failed",
        r"Ninja build failed|ninja: build stopped|Error building extension|CalledProcessError: Command '?\[?'?\S*(?:ninja|nvcc|gcc|g\+\+|cc|c\+\+|clang|ptxas)'?",
        0.88,
        4,
    ),
    rule(
        "jit_compile_failed",
        r"No such file or directory: '?\S*(?:ninja|nvcc|ptxas|gcc|g\+\+)'?|Could not find nvcc|CUDA_HOME environment variable is not set|Failed to find C compiler|nvcc: not found",
        0.9,
        3,
    ),
    rule(
        "jit_compile_failed",
        r"fatal error: \S+\.(?:h|hpp|cuh): No such file|nvcc fatal|cannot find -l\w+|NVCC compilation failed|nvrtc: error|NVRTC_ERROR|error: command '\S*(?:nvcc|gcc|g\+\+)' failed",
        0.9,
        3,
    ),
    rule(
        "jit_compile_failed",
        r"triton\.compiler\.errors\.CompilationError|PTXASError|torch\._inductor\.exc|BackendCompilerFailed|InductorError|torch\._dynamo\.exc\.\w+",
        0.85,
        4,
    ),
    rule(
        "jit_compile_failed",
        r"Killed signal terminated program|fatal error: Killed|(?:tilelang|cutlass|cute|tvm)\S*.*[Cc]ompil\w+ (?:failed|error)|JIT compil\w+ failed|Failed to (?:JIT[- ])?compile",
        0.85,
        3,
    ),
    rule(
        "unsupported_gpu_architecture",
        r"Unsupported architecture|no kernel image is available|No supported CUDA architectures found|[Uu]nsupported (?:GPU|SM|compute|cuda)[ \w]*(?:arch|version|capab)",
        0.94,
        2,
    ),
    rule(
        "unsupported_gpu_architecture",
        r"is not compatible with the current PyTorch installation|FlashAttention only supports Ampere|not supported in this architecture|[Aa]rch conditional MMA|without targeting appropriate compute capability",
        0.92,
        2,
    ),
    rule(
        "unsupported_gpu_architecture",
        r"not supported for the current GPU|Minimum capability: \d+|compute capability of at least|requires? (?:a GPU with )?(?:GPU )?compute capability|SGLang only supports sm\d+|on GPUs? with (?:compute )?capability|(?:not|only) (?:implemented|supported) (?:for|on) this (?:GPU|hardware|device|arch)",
        0.88,
        2,
    ),
    rule(
        "unsupported_gpu_architecture",
        r"OutOfResources: out of resource: shared memory",
        0.7,
        3,
        cause="a Triton kernel asks for more shared memory than this GPU has",
        remedy="another backend or a kernel configuration tuned for this GPU",
    ),
)

MODEL: tuple[Rule, ...] = (
    rule(
        "trust_remote_code",
        r"contains custom code which must be executed|pass the argument `trust_remote_code=True`|set the option `trust_remote_code=True`|(?:consider|try|please)(?: setting| using| adding)? `?(?:--)?trust[-_]remote[-_]code|requires you to execute the \w+ file in that repo",
        0.95,
        1,
    ),
    rule(
        "unsupported_model",
        r"Model architectures? .* (?:is|are) not supported for now|Unsupported architectures?: ?\[?'?[A-Z]|does not recognize this architecture|has no SGLang implementation",
        0.95,
        2,
    ),
    rule("unsupported_model", r"KeyError: '[a-z][\w\-]+'", 0.8, 4, frames=r"configuration_auto\.py"),
    rule(
        "quantization_error",
        r"is not divisible by (?:weight )?quantization block|not aligned with the quantized weight shape|not divisible by +min_thread_|Cannot find the config file for \w+|Cannot find any of \['quant",
        0.94,
        1,
    ),
    rule(
        "quantization_error",
        r"is not supported for quantization method|[Uu]nsupported quantization|KeyError: '\S*(?:weight_scale\w*|input_scale|qweight|qzeros|scales|weight_packed)'|Quantization scheme is not supported|quant(?:ization)? (?:config|method) .*(?:not supported|invalid|mismatch)",
        0.85,
        3,
    ),
    rule(
        "model_import_failed",
        r"is not a local folder and is not a valid model identifier|couldn't connect to 'https?://|does not appear to have a file named|Can't load (?:the )?(?:tokenizer|config\w*|model|image processor|feature extractor) for|Incorrect path_or_model_id",
        0.92,
        3,
    ),
    rule(
        "model_import_failed",
        r"HFValidationError|RepositoryNotFoundError|GatedRepoError|LocalEntryNotFoundError|OfflineModeIsEnabled|Repository Not Found|Cannot find any model weights with|SafetensorError|Error while deserializing header|Cannot access gated repo|Unrecognized model in|EntryNotFoundError",
        0.9,
        4,
    ),
    rule(
        "model_import_failed",
        r"FileNotFoundError: .*\.(?:safetensors|bin|json|model|pt|gguf)\b|No safetensors|is not a valid JSON file|Missing (?:weights|checkpoint)|checkpoint shards? (?:is|are) (?:missing|corrupt)",
        0.88,
        4,
    ),
    rule(
        "model_import_failed",
        r"(?:ImportError: cannot import name .* from '(?:transformers|sglang|mistral_common|tokenizers)|ModuleNotFoundError: No module named|ImportError: This modeling file requires|requires the \w+ library but it was not found)",
        0.75,
        5,
    ),
    rule(
        "model_import_failed",
        r"(?:KeyError|RuntimeError|ValueError): .*(?:model\.layers\.\d+\S*|lm_head\.weight|size mismatch for|Parameter \S+ not found|weights were not initialized)",
        0.7,
        5,
    ),
)

TRANSFORMERS: tuple[Rule, ...] = (
    rule("trust_remote_code", r"Tokenizer class \w+ does not exist or is not currently imported", 0.75, 4),
    rule(
        "unsupported_model",
        r"Unrecognized configuration class|is not a supported (?:model|architecture)|model type .* is not supported",
        0.85,
        3,
    ),
    rule(
        "model_import_failed",
        r"Should have a `model_type` key|Unable to load weights from|Error no file named",
        0.85,
        4,
    ),
)
LIMITS: tuple[Rule, ...] = (
    rule(
        "rejected_argument_combination",
        r"User-specified context_length \(\d+\) is greater than the derived.*(?:This may|To allow|set )",
        0.9,
        2,
    ),
    rule(
        "rejected_argument_combination",
        r"^AssertionError: \d+ is not divisible by \d+",
        0.8,
        3,
        cause="a dimension of the model does not divide by the parallel size",
        remedy="another --tp-size",
    ),
    rule("unsupported_gpu_architecture", r"device kernel image is invalid|CUDA_ERROR_INVALID_IMAGE|CUDA_ERROR_NO_BINARY_FOR_GPU", 0.7, 3),
    rule("kernel_version_mismatch", r"Torch not compiled with CUDA enabled|not compiled with GPU support", 0.85, 3),
)

ROOTS: tuple[Rule, ...] = (*ARGUMENTS, *PACKAGES, *COMPILER, *MODEL, *TRANSFORMERS, *LIMITS, *RUNTIME, OUT_OF_MEMORY, *PROXY)
