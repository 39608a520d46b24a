"""Writes one tiny model folder (config, tokenizer, chat template) for `--load-format dummy`.

Run by an interpreter that has `tokenizers` (the engine's): `python tiny_models_script.py NAME OUT_DIR`. Weights are random by
construction: such a model exercises launch, flags and load; its text says nothing."""

import json
import pathlib
import sys
from typing import Any

VOCABULARY = 4096
COMMON = {
    "vocab_size": VOCABULARY,
    "eos_token_id": 0,
    "max_position_embeddings": 32768,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1e6,
    "torch_dtype": "bfloat16",
    "hidden_act": "silu",
    "tie_word_embeddings": False,
    "attention_bias": False,
    "use_cache": True,
    "initializer_range": 0.02,
}
DENSE = {"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3"}
MOE = {
    "architectures": ["Qwen3MoeForCausalLM"],
    "model_type": "qwen3_moe",
    "head_dim": 128,
    "num_experts": 128,
    "num_experts_per_tok": 8,
    "norm_topk_prob": True,
    "decoder_sparse_step": 1,
    "mlp_only_layers": [],
    "router_aux_loss_coef": 0.001,
    "output_router_logits": False,
}


def _shape(hidden: int, head: int, intermediate: int, layers: int, heads: int, kv_heads: int) -> dict[str, int]:
    return {
        "hidden_size": hidden,
        "head_dim": head,
        "intermediate_size": intermediate,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
    }


MODELS = {
    "dense-cpu": {**COMMON, **DENSE, **_shape(128, 32, 256, 2, 4, 2)},
    "dense-tiny": {**COMMON, **DENSE, **_shape(1024, 128, 3072, 12, 16, 8)},
    "moe-small": {**COMMON, **MOE, **_shape(2048, 128, 6144, 24, 32, 4), "moe_intermediate_size": 768},
    # GLM-5's width, so that the message sizes of its all-reduces are met
    "moe-wide": {**COMMON, **MOE, **_shape(6144, 128, 6144, 8, 64, 8), "moe_intermediate_size": 768},
}
CHAT = "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}<|im_start|>assistant\n"


def train_tokenizer() -> Any:
    """A byte-level BPE over the standard library's own source: real merges, no download."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    sources = sorted(pathlib.Path(json.__file__).parent.parent.glob("*.py"))
    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    trainer = trainers.BpeTrainer(vocab_size=VOCABULARY, special_tokens=special, show_progress=False)
    tokenizer.train_from_iterator([path.read_text(errors="ignore") for path in sources], trainer)
    return tokenizer


def main(name: str, folder: pathlib.Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    train_tokenizer().save(str(folder / "tokenizer.json"))
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": 0}))
    (folder / "tokenizer_config.json").write_text(
        json.dumps(
            {
                "tokenizer_class": "PreTrainedTokenizerFast",
                "eos_token": "<|endoftext|>",
                "model_max_length": 32768,
                "chat_template": CHAT,
            }
        )
    )
    (folder / "config.json").write_text(json.dumps(MODELS[name], indent=1))  # last: its presence means the folder is whole


if __name__ == "__main__":
    main(sys.argv[1], pathlib.Path(sys.argv[2]))
