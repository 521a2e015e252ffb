"""The parts of some models' config.json that decide their KV bytes."""

KIMI_TEXT = {
    "num_hidden_layers": 61,
    "kv_lora_rank": 512,
    "qk_rope_head_dim": 64,
    "qk_nope_head_dim": 128,
    "v_head_dim": 128,
    "q_lora_rank": 1536,
    "num_attention_heads": 64,
    "hidden_size": 7168,
    "torch_dtype": "bfloat16",
}
KIMI = {"architectures": ["KimiK25ForConditionalGeneration"], "text_config": KIMI_TEXT}
DSV32 = {
    **KIMI_TEXT,
    "architectures": ["DeepseekV32ForCausalLM"],
    "index_topk": 2048,
    "index_head_dim": 128,
}
GLM52 = {**DSV32, "architectures": ["GlmMoeDsaForCausalLM"], "num_hidden_layers": 78}
QWEN3_235B = {
    "architectures": ["Qwen3MoeForCausalLM"],
    "num_hidden_layers": 94,
    "num_attention_heads": 64,
    "num_key_value_heads": 4,
    "head_dim": 128,
    "hidden_size": 4096,
}
LLAMA_70B = {
    "architectures": ["LlamaForCausalLM"],
    "num_hidden_layers": 80,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "hidden_size": 8192,
}
GPT_OSS_120B = {
    "architectures": ["GptOssForCausalLM"],
    "num_hidden_layers": 36,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "head_dim": 64,
    "hidden_size": 2880,
    "sliding_window": 128,
    "layer_types": ["sliding_attention", "full_attention"] * 18,
}
MIMO = {
    "architectures": ["MiMoV2FlashForCausalLM"],
    "num_hidden_layers": 48,
    "num_key_value_heads": 4,
    "head_dim": 192,
    "v_head_dim": 128,
    "swa_num_key_value_heads": 8,
    "swa_head_dim": 192,
    "swa_v_head_dim": 128,
    "sliding_window": 128,
    "hybrid_layer_pattern": [0] + [1] * 39 + [0] * 8,
}
QWEN3_NEXT = {
    "architectures": ["Qwen3NextForCausalLM"],
    "num_hidden_layers": 48,
    "full_attention_interval": 4,
    "num_attention_heads": 16,
    "num_key_value_heads": 2,
    "head_dim": 256,
    "hidden_size": 2048,
    "linear_num_value_heads": 32,
    "linear_value_head_dim": 128,
    "linear_num_key_heads": 16,
    "linear_key_head_dim": 128,
    "linear_conv_kernel_dim": 4,
}
NEMOTRON_H = {
    "architectures": ["NemotronHForCausalLM"],
    "num_hidden_layers": 6,
    "hybrid_override_pattern": "M-M*-M",
    "num_attention_heads": 40,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "hidden_size": 4480,
    "mamba_num_heads": 128,
    "mamba_head_dim": 80,
    "n_groups": 8,
    "ssm_state_size": 128,
    "conv_kernel": 4,
}
KIMI_LINEAR = {
    "architectures": ["KimiLinearForCausalLM"],
    "num_hidden_layers": 4,
    "kv_lora_rank": 512,
    "qk_rope_head_dim": 64,
    "linear_attn_config": {
        "kda_layers": [1, 2, 3],
        "num_heads": 32,
        "head_dim": 128,
        "short_conv_kernel_size": 4,
    },
}
