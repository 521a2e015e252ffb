"""KV bytes from a config.json, against sums done by hand and sizes that real servers printed.

Printed sizes come from public threads of the SGLang project: pull requests #11309
(DeepSeek-V3.2) and #18039 (MiMo-V2-Flash), and vLLM's issue #21348 (Qwen3-235B on SGLang).
Their two decimals of GiB leave about 0.1 %.
"""

import json

import pytest
from model_configs import (
    DSV32,
    GLM52,
    GPT_OSS_120B,
    KIMI,
    KIMI_LINEAR,
    KIMI_TEXT,
    LLAMA_70B,
    MIMO,
    NEMOTRON_H,
    QWEN3_235B,
    QWEN3_NEXT,
)

from loganalyze.capacity import kv_bytes
from loganalyze.capacity.kv_bytes import Setting
from loganalyze.errors import InputError, UsageError

GIB = 2**30


def only(config, **setting):
    """Return the one cell of a config."""
    (cell,) = kv_bytes.cells(config, Setting(**setting))
    return cell


@pytest.mark.parametrize(
    ("config", "setting", "by_hand"),
    [
        (KIMI, {"tp": 8}, (512 + 64) * 61 * 2),
        (KIMI, {"tp": 8, "kv_dtype": "fp8_e4m3"}, 576 * 61),
        (KIMI, {"tp": 8, "kv_dtype": "fp4_e2m1"}, (576 // 2 + 576 // 16) * 61),
        (KIMI, {"tp": 8, "dp_attention": 8}, 576 * 61 * 2),
        (KIMI, {"tp": 8, "dcp": 8}, 576 * 61 * 2 / 8),
        (KIMI, {"tp": 8, "pp": 4}, 576 * 16 * 2),  # 15 + 15 + 15 + 16 layers
        (QWEN3_235B, {"tp": 4}, 1 * 256 * 94 * 2),
        (QWEN3_235B, {"tp": 8}, 1 * 256 * 94 * 2),  # no less: a head cannot be split
        (QWEN3_235B, {"tp": 8, "dp_attention": 8}, 4 * 256 * 94 * 2),
        (QWEN3_235B, {"tp": 8, "dcp": 2}, 1 * 256 * 94 * 2 / 2),
        (LLAMA_70B, {"tp": 8}, 1 * (128 + 128) * 80 * 2),
        (LLAMA_70B, {"tp": 2}, 4 * (128 + 128) * 80 * 2),
        (LLAMA_70B, {"tp": 8, "kv_dtype": "mxfp8"}, 256 * 80 * (1 + 1 / 32)),
        (GLM52, {"tp": 8, "kv_dtype": "bfloat16"}, (576 * 2 + 132) * 78),
    ],
)
def test_bytes_per_token(config, setting, by_hand):
    assert only(config, **setting).bytes_per_token == by_hand


def test_the_founding_case():
    cell = only(KIMI, tp=8)
    assert cell.bytes_per_token == 70_272
    assert round(116_171 * cell.bytes_per_token / GIB, 2) == 7.60
    assert cell.copies == 8  # the latent lies whole on every rank
    assert cell.formula == "(512 + 64) x 61 layers x 2 bytes"


def test_a_sparse_model_has_two_layouts_and_the_config_does_not_say_which():
    raw, scaled = kv_bytes.cells(GLM52, Setting(tp=8, kv_dtype="fp8_e4m3"))
    assert raw.bytes_per_token == (576 + 132) * 78 == 55_224
    assert scaled.bytes_per_token == (656 + 132) * 78 == 61_464
    assert "trtllm" in raw.assumes
    assert "flashmla" in scaled.assumes
    assert only(GLM52, tp=8, kv_dtype="fp8_e4m3", kv_layout="trtllm") == raw
    assert only(GLM52, kv_dtype="fp8", kv_layout="flashmla").bytes_per_token == 61_464


def test_the_indexer_is_not_shared_by_dcp_ranks():
    cell = only(GLM52, tp=8, dcp=8, kv_dtype="bfloat16")
    assert cell.bytes_per_token == 576 * 2 * 78 / 8 + 132 * 78
    assert cell.copies == 1


def test_layers_that_share_topk_may_keep_no_indexer_row():
    config = {**GLM52, "index_topk_freq": 4}
    every, own = kv_bytes.cells(config, Setting(kv_dtype="fp8", kv_layout="trtllm"))
    # Layer 0 and then layers 1, 5, 9 ... 77 select for themselves: 21 of 78.
    assert every.bytes_per_token == (576 + 132) * 78
    assert own.bytes_per_token == 576 * 78 + 132 * 21


@pytest.mark.parametrize(
    ("config", "setting", "tokens", "gib"),
    [
        (DSV32, {"tp": 8, "dp_attention": 8, "kv_dtype": "fp8", "kv_layout": "flashmla"},
         975_424, 43.67),
        (QWEN3_235B, {"tp": 4}, 367_404, 8.23 + 8.23),
    ],
)  # fmt: skip
def test_printed_pool_sizes(config, setting, tokens, gib):
    cell = only(config, **setting)
    assert cell.pool_bytes_per_token * tokens / GIB == pytest.approx(gib, rel=1e-3)


def test_a_printed_window_pool():
    cell = only(MIMO, tp=4)
    # Two KV heads of the 8, keys of 192 and values of 128, 39 layers.
    assert cell.swa_bytes_per_token == 2 * (192 + 128) * 39 * 2
    assert cell.swa_bytes_per_token * 300_288 / GIB == pytest.approx(8.38 + 5.59, rel=1e-3)
    assert cell.pool_bytes_per_token == 1 * (192 + 128) * 9 * 2


def test_full_and_window_pools_share_the_memory():
    cell = only(GPT_OSS_120B, tp=1)
    full = 8 * 128 * 18 * 2
    assert cell.pool_bytes_per_token == full
    assert cell.bytes_per_token == full + 0.8 * full
    assert (cell.window, cell.swa_ratio) == (128, 0.8)
    assert only(GPT_OSS_120B, swa_ratio=0.5).bytes_per_token == full * 1.5
    assert only(GPT_OSS_120B, swa_memory=False).bytes_per_token == 2 * full


def test_only_attention_layers_keep_kv_and_the_others_a_state():
    cell = only(QWEN3_NEXT, tp=1)
    assert cell.bytes_per_token == 2 * 512 * 12 * 2 == 24_576
    # Convolution: (4,096 + 2 x 16 x 128) x 3 in bf16; state: 32 x 128 x 128 in float32.
    assert cell.state_bytes == (8192 * 3 * 2 + 524_288 * 4) * 36 == 77_266_944
    half = only(QWEN3_NEXT, tp=1, ssm_dtype="bfloat16")
    assert half.state_bytes == (8192 * 3 * 2 + 524_288 * 2) * 36
    split = only(QWEN3_NEXT, tp=4)
    assert split.state_bytes == 77_266_944 / 4
    assert split.bytes_per_token == 1 * 512 * 12 * 2


def test_a_mamba_pattern():
    cell = only(NEMOTRON_H, tp=1)
    assert cell.bytes_per_token == 8 * 256 * 1 * 2
    assert cell.state_bytes == ((128 * 80 + 2 * 8 * 128) * 3 * 2 + 128 * 80 * 128 * 4) * 3


def test_a_group_that_several_ranks_need_is_kept_by_each():
    # 8 groups over 16 ranks: counted as 16, so that each rank has one.
    cell = only(NEMOTRON_H, tp=16)
    conv = (128 * 80 + 2 * 16 * 128) // 16 * 3
    assert cell.state_bytes == (conv * 2 + 128 // 16 * 80 * 128 * 4) * 3


def test_linear_attention_beside_a_latent():
    cell = only(KIMI_LINEAR, tp=2)
    assert cell.bytes_per_token == 576 * 1 * 2
    assert cell.copies == 2
    assert cell.state_bytes == (3 * (32 * 128 // 2) * 3 * 2 + 16 * 128 * 128 * 4) * 3


def test_replication_of_heads():
    assert only(LLAMA_70B, tp=8).copies == 1
    assert only(LLAMA_70B, tp=16).copies == 2
    assert only(QWEN3_235B, tp=16, dp_attention=4).copies == 1


def test_draft_layers_come_on_top():
    cell = only(KIMI, tp=8, draft_layers=1)
    assert cell.draft_bytes_per_token == 576 * 2
    assert cell.bytes_per_token == 70_272
    sparse = only(GLM52, kv_dtype="bfloat16", draft_layers=2)
    assert sparse.draft_bytes_per_token == (576 * 2 + 132) * 2
    assert kv_bytes.draft_layers({**DSV32, "num_nextn_predict_layers": 1}) == 1


def test_attention_weights_that_dp_attention_keeps_whole():
    # By hand: 64 x (1536 x 192 + 512 x 256 + 128 x 7168) x 61 layers x 2 bytes.
    weights, _ = kv_bytes.attention_weight_bytes(KIMI)
    assert weights == 64 * (294_912 + 131_072 + 917_504) * 61 * 2
    fp8 = {**KIMI, "quantization_config": {"quant_method": "fp8"}}
    assert kv_bytes.attention_weight_bytes(fp8)[0] == weights / 2
    assert kv_bytes.attention_weight_bytes(GPT_OSS_120B) is None


@pytest.mark.parametrize(
    ("config", "field"),
    [
        ({"architectures": ["DeepseekV3ForCausalLM"], "num_hidden_layers": 61}, "kv_lora_rank"),
        ({**KIMI_TEXT, "architectures": ["DeepseekV32ForCausalLM"]}, "index_topk"),
        ({**LLAMA_70B, "num_hidden_layers": None}, "num_hidden_layers"),
        ({**QWEN3_235B, "num_key_value_heads": None}, "num_key_value_heads"),
        ({**QWEN3_235B, "head_dim": None}, "head_dim"),
        ({**GPT_OSS_120B, "layer_types": None}, "layer_types"),
        ({**GPT_OSS_120B, "sliding_window": None}, "sliding_window"),
        ({**QWEN3_NEXT, "linear_key_head_dim": None}, "linear_key_head_dim"),
        ({"num_hidden_layers": 61}, "architectures"),
        ({**LLAMA_70B, "num_hidden_layers": "80"}, "num_hidden_layers"),
    ],
)
def test_a_missing_field_is_an_error(config, field):
    with pytest.raises(InputError, match=field):
        kv_bytes.cells(config, Setting(kv_dtype="bfloat16"))


@pytest.mark.parametrize(
    "name", ["MadeUpForCausalLM", "MllamaForConditionalGeneration", "DeepseekV4ForCausalLM"]
)
def test_an_unknown_architecture_is_an_error(name):
    with pytest.raises(InputError, match=name):
        kv_bytes.cells({**LLAMA_70B, "architectures": [name]}, Setting())


@pytest.mark.parametrize(
    "setting",
    [
        {"kv_dtype": "int3"},
        {"tp": 6, "dp_attention": 4},
        {"tp": 8, "dp_attention": 8, "dcp": 2},
        {"tp": 0},
        {"kv_dtype": "mxfp8"},
    ],
)
def test_an_impossible_setting_is_an_error(setting):
    with pytest.raises(UsageError):
        kv_bytes.cells(KIMI, Setting(**setting))


def test_the_dtype_of_a_sparse_model_depends_on_the_gpu():
    with pytest.raises(UsageError, match="depends on the GPU"):
        kv_bytes.cells(GLM52, Setting())
    with pytest.raises(UsageError, match="fp4"):
        kv_bytes.cells(GLM52, Setting(kv_dtype="fp4_e2m1"))


def test_old_llama_configs_have_as_many_kv_heads_as_heads():
    old = {k: v for k, v in LLAMA_70B.items() if k != "num_key_value_heads"}
    assert only(old, tp=8).bytes_per_token == 8 * 256 * 80 * 2


@pytest.mark.parametrize(
    ("content", "words"), [(None, "No such file"), ("{", "not JSON"), ("[1]", "not a JSON object")]
)
def test_a_file_that_is_no_config(tmp_path, content, words):
    path = tmp_path / "config.json"
    if content is not None:
        path.write_text(content)
    with pytest.raises(InputError, match=words):
        kv_bytes.read(str(path))


def test_a_config_file_is_read(tmp_path):
    path = tmp_path / "config.json"
    path.write_text(json.dumps(KIMI))
    assert kv_bytes.read(str(path)) == KIMI
