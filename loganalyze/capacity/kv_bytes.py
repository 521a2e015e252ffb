"""KV bytes per token from first principles: a model's config.json and how it is split.

Computed as SGLang computes them when it sizes its pools; each formula names its source. An
architecture or a field that is not known is an error: a guess made here is a wrong number of
GPUs later.

Why architectures are listed: models with unusual caches (cross attention, shared KV layers,
compressed attention) carry the same fields in their config as plain ones do.

Sources: SGLang 0.5.9 `get_cell_size_per_token`, `mamba2_cache_params`; 0.5.23
`pool_configurator`, `get_num_kv_heads`, `get_pp_indices`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from loganalyze.errors import InputError, UsageError
from loganalyze.model import KvCell

Layout = Literal["trtllm", "flashmla"]
Config = Mapping[str, Any]


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


#: Every layer keeps K and V of each KV head.
_GQA = _names(
    """
    ApertusForCausalLM ArceeForCausalLM BailingMoeForCausalLM BailingMoeV2ForCausalLM
    Cohere2ForCausalLM CohereForCausalLM DeepseekForCausalLM Ernie4_5_ForCausalLM
    Ernie4_5_MoeForCausalLM ExaoneForCausalLM Gemma2ForCausalLM Gemma3ForCausalLM
    Gemma3ForConditionalGeneration GemmaForCausalLM Glm4ForCausalLM Glm4MoeForCausalLM
    Glm4vForConditionalGeneration Glm4vMoeForConditionalGeneration GraniteForCausalLM
    GraniteMoeForCausalLM Grok1ForCausalLM Grok1ModelForCausalLM HunYuanDenseV1ForCausalLM
    HunYuanMoEV1ForCausalLM InternLM2ForCausalLM InternLM3ForCausalLM InternVLChatModel
    Llama4ForCausalLM LlamaForCausalLM MiMoForCausalLM MiniCPMForCausalLM
    MiniMaxM2ForCausalLM Ministral3ForCausalLM Mistral3ForConditionalGeneration
    MistralForCausalLM MixtralForCausalLM Olmo2ForCausalLM OlmoForCausalLM
    OlmoeForCausalLM Phi3ForCausalLM PhiMoEForCausalLM Qwen2ForCausalLM Qwen2MoeForCausalLM
    Qwen2VLForConditionalGeneration Qwen2_5_VLForConditionalGeneration Qwen3ForCausalLM
    Qwen3MoeForCausalLM Qwen3OmniMoeForConditionalGeneration Qwen3VLForConditionalGeneration
    Qwen3VLMoeForConditionalGeneration SolarForCausalLM StableLmForCausalLM
    Starcoder2ForCausalLM XverseForCausalLM XverseMoeForCausalLM
    """
)

#: Every layer keeps one latent vector, shared by all heads.
_MLA = _names(
    """
    DeepseekV2ForCausalLM DeepseekV32ForCausalLM DeepseekV3ForCausalLM
    DeepseekVL2ForCausalLM DotsVLMForCausalLM Glm4MoeLiteForCausalLM GlmMoeDsaForCausalLM
    KimiK25ForConditionalGeneration KimiVLForConditionalGeneration LongcatFlashForCausalLM
    MiniCPM3ForCausalLM MistralLarge3ForCausalLM SarvamMLAForCausalLM
    """
)

#: MLA models with an indexer (sparse attention) where the config has `index_topk` ...
_DSA = _names(
    """
    DeepseekV32ForCausalLM DeepseekV3ForCausalLM GlmMoeDsaForCausalLM
    LongcatFlashForCausalLM MistralLarge3ForCausalLM
    """
)
#: ... and those that always have one.
_ALWAYS_DSA = frozenset(("DeepseekV32ForCausalLM", "GlmMoeDsaForCausalLM"))

#: Some layers keep only a window of tokens, in a pool of their own.
_SWA = _names(
    """
    GptOssForCausalLM Llama4ForConditionalGeneration MiMoV2FlashForCausalLM
    MiMoV2ForCausalLM Step3p5ForCausalLM
    """
)

#: Some layers keep a state per request instead of KV per token.
_STATE = _names(
    """
    FalconH1ForCausalLM GraniteMoeHybridForCausalLM KimiLinearForCausalLM Lfm2ForCausalLM
    Lfm2MoeForCausalLM NemotronHForCausalLM Qwen3NextForCausalLM
    Qwen3_5ForConditionalGeneration Qwen3_5MoeForConditionalGeneration
    """
)

#: Where the class's own default is not hidden_size / heads, a config without head_dim is not
#: enough.
_OWN_HEAD_DIM = ("Gemma", "Glm4", "GptOss", "Qwen3", "Step3", "MiMoV2", "Mistral3", "Ministral")

#: Element bytes of --kv-cache-dtype. 16-bit for `auto`: SGLang serves float32 models as float16.
ELEMENT = {
    "auto": 2, "bf16": 2, "bfloat16": 2, "fp16": 2, "float16": 2,
    "fp8": 1, "fp8_e4m3": 1, "fp8_e5m2": 1, "mxfp8": 1,
    "fp4": 1, "fp4_e2m1": 1, "nvfp4": 1, "fp4_mx_block16": 1,
}  # fmt: skip
FP4 = frozenset(("fp4", "fp4_e2m1", "nvfp4", "fp4_mx_block16"))
#: Elements that share one byte of scale.
_FP4_BLOCK = 16
_MXFP8_BLOCK = 32
#: DSA: elements that share one float32 scale.
_DSA_BLOCK = 128

_STATE_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}


@dataclass(frozen=True, slots=True)
class Setting:
    """How a model is served, as far as it decides the KV bytes.

    Attributes:
        tp, pp, dcp: tensor, pipeline and decode-context parallel size.
        dp_attention: ranks of DP attention (`--dp-size` with `--enable-dp-attention`).
        kv_dtype: `--kv-cache-dtype`.
        kv_layout: how a DSA model stores fp8: `trtllm` (raw), `flashmla` (with scales); None
            where it is not known.
        draft_layers: layers of a draft model that shares the pool's token slots.
        swa_ratio: `--swa-full-tokens-ratio`; `swa_memory` False for
            `--disable-hybrid-swa-memory`.
        ssm_dtype: `--mamba-ssm-dtype`; None for the model's own.
    """

    tp: int = 1
    pp: int = 1
    dcp: int = 1
    dp_attention: int = 1
    kv_dtype: str = "auto"
    kv_layout: Layout | None = None
    draft_layers: int = 0
    swa_ratio: float = 0.8
    swa_memory: bool = True
    ssm_dtype: str | None = None

    @property
    def attn_tp(self) -> int:
        """GPUs that share one request's attention."""
        return self.tp // self.dp_attention


def read(path: str) -> dict[str, Any]:
    """Read a config.json.

    Raises:
        InputError: it cannot be read, or is no JSON object.
    """
    hint = "--model-config takes the config.json in the model's folder"
    try:
        with open(path, encoding="utf-8") as file:
            config = json.load(file, parse_int=_size)
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}", hint=hint) from error
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path}: not JSON: {error}", hint=hint) from error
    if not isinstance(config, dict):
        raise InputError(f"{path}: not a JSON object", hint=hint)
    return config


def _size(digits: str) -> float:
    """Return a whole number; one that counts nothing real becomes a float, which is no size."""
    return int(digits) if len(digits) < 16 else float(digits)


def cells(config: Config, setting: Setting) -> tuple[KvCell, ...]:
    """Return the bytes per token; more than one where the config leaves a choice open.

    Args:
        config: a Hugging Face config.json.
        setting: how the model is served.

    Raises:
        InputError: the architecture is not known, or the config lacks a field.
        UsageError: the setting is impossible.
    """
    name = architecture(config)
    check(setting)
    text = _text_config(config)
    if name in _GQA:
        return (_gqa(name, text, setting),)
    if name in _MLA and (name != "DeepseekVL2ForCausalLM" or text.get("use_mla", True)):
        return _mla(name, text, setting)
    if name in _SWA:
        return (_swa(name, text, setting),)
    if name in _STATE:
        return (_state(name, text, setting),)
    raise InputError(
        f"the KV cache of {name} is not known to loganalyze",
        hint="take the bytes from the log: KV size / #tokens of `KV Cache is allocated`",
    )


def architecture(config: Config) -> str:
    """Return the model class that the config names."""
    names = config.get("architectures")
    if not isinstance(names, list) or not names or not isinstance(names[0], str):
        raise InputError(
            "the model config has no architectures", hint="take the config.json of the model"
        )
    return names[0]


def draft_layers(config: Config) -> int:
    """Return the layers of the model's own draft head (MTP, NextN); 0 without one."""
    return _whole(_text_config(config).get("num_nextn_predict_layers"), 0)


def element_bytes(kv_dtype: str) -> float:
    """Return the bytes of one stored element, its share of scales included.

    Raises:
        UsageError: no such KV dtype.
    """
    check(Setting(kv_dtype=kv_dtype))
    return _per_element(Setting(kv_dtype=kv_dtype), "")


def keeps_latent(name: str) -> bool:
    """Whether a model class keeps one latent for all heads (MLA), as far as is known."""
    return name in _MLA


def asks_for_fp8(config: Config) -> bool:
    """Whether the checkpoint brings scales for an 8-bit KV cache."""
    quantisation = _text_config(config).get("quantization_config")
    if not isinstance(quantisation, Mapping):
        return False
    return bool(quantisation.get("kv_cache_scheme") or quantisation.get("kv_cache_quant_algo"))


def attention_weight_bytes(config: Config) -> tuple[float, str] | None:
    """Return the bytes of attention weights that tensor parallelism shards, and the formula.

    DP attention keeps them whole (or sharded over fewer GPUs) on every rank. Counted at two
    bytes a weight unless the checkpoint is fp8: quantised checkpoints as a rule leave
    attention alone. None where a size is missing, and for models with several kinds of layer.

    Source:
        SGLang's attention layers: projections are split by heads; q_a and kv_a of MLA are on
        every rank already.
    """
    name, text = architecture(config), _text_config(config)
    try:
        heads, hidden = _need(text, "num_attention_heads"), _need(text, "hidden_size")
        layers = _count(name, text)
        if name in _MLA:
            latent, rope = _need(text, "kv_lora_rank"), _need(text, "qk_rope_head_dim")
            nope, value = _need(text, "qk_nope_head_dim"), _need(text, "v_head_dim")
            query = _whole(text.get("q_lora_rank"), 0) or hidden
            weights = heads * (query * (nope + rope) + latent * (nope + value) + value * hidden)
            words = (
                f"{heads} heads x ({query} x {nope + rope} + {latent} x {nope + value} + "
                f"{value} x {hidden})"
            )
        elif name in _GQA:
            kv, width = _kv_heads(name, text), _whole(text.get("head_dim"), 0) or hidden // heads
            weights = 2 * hidden * width * (heads + kv)
            words = f"2 x {hidden} x {width} x ({heads} + {kv} heads)"
        else:
            return None
    except InputError:
        return None
    method = (text.get("quantization_config") or {}).get("quant_method")
    size = 1 if method == "fp8" else 2
    return float(weights * layers * size), (
        f"{words} x {layers} layers x {size} byte" + "s" * (size > 1)
    )


# -- one function per kind of cache -------------------------------------------------------


def _gqa(name: str, text: Config, setting: Setting) -> KvCell:
    layers = _count(name, text)
    width, copies, words = _heads(name, text, setting)
    per_layer = width * _per_element(setting, name)
    stage = max(end - start for start, end in _stages(layers, setting))
    return KvCell(
        kind="gqa",
        bytes_per_token=per_layer * stage / setting.dcp,
        pool_bytes_per_token=per_layer * stage / setting.dcp,
        draft_bytes_per_token=per_layer * setting.draft_layers,
        copies=copies,
        formula=f"{words} x {stage} layers x {_said(setting)}" + _shared_by(setting),
        assumes=_fp4_note(setting),
    )


def _mla(name: str, text: Config, setting: Setting) -> tuple[KvCell, ...]:
    """Return the cells of an MLA model: one, or several where an indexer leaves a choice."""
    latent, rope = _need(text, "kv_lora_rank"), _need(text, "qk_rope_head_dim")
    layers = _count(name, text)
    dsa = name in _DSA and (text.get("index_topk") is not None or name in _ALWAYS_DSA)
    if not dsa:
        per_layer = (latent + rope) * _per_element(setting, name)
        return (
            _latent_cell(
                "mla",
                per_layer,
                [0.0] * layers,
                setting,
                f"({latent} + {rope})",
                _fp4_note(setting),
            ),
        )
    _need(text, "index_topk")
    index = _need(text, "index_head_dim")
    index = -(-(index + index // _DSA_BLOCK * 4) // _whole(text.get("index_kpool"), 1))
    found = []
    for per_layer, words, stored in _dsa_rows(latent, rope, setting):
        for index_layers, shared in _indexer_layers(text, layers):
            assumes = "; ".join(filter(None, (stored, shared)))
            row = [float(index * has) for has in index_layers]
            found.append(_latent_cell("dsa", per_layer, row, setting, words, assumes))
    return tuple(found)


def _latent_cell(
    kind: Literal["mla", "dsa"],
    per_layer: float,
    index_rows: Sequence[float],
    setting: Setting,
    words: str,
    assumes: str,
) -> KvCell:
    """Return the cell of a latent: on every attention rank, shared only by DCP ranks.

    The indexer's row is never shared: it lies on every DCP rank too.
    """

    def stage_bytes(stage: tuple[int, int]) -> float:
        start, end = stage
        return per_layer * (end - start) / setting.dcp + sum(index_rows[start:end])

    start, end = max(_stages(len(index_rows), setting), key=stage_bytes)
    total = stage_bytes((start, end))
    formula = f"{words} x {end - start} layers"
    if kind == "mla" or setting.kv_dtype not in ("fp8", "fp8_e4m3"):
        formula += f" x {_said(setting)}"
    formula += _shared_by(setting)
    indexed = [row for row in index_rows[start:end] if row]
    if indexed:
        formula += f" + {indexed[0]:.0f} of the indexer x {len(indexed)} layers"
    return KvCell(
        kind=kind,
        bytes_per_token=total,
        pool_bytes_per_token=total,
        draft_bytes_per_token=(per_layer + max(index_rows)) * setting.draft_layers,
        copies=setting.attn_tp / setting.dcp,
        formula=formula,
        assumes=assumes,
    )


def _dsa_rows(latent: int, rope: int, setting: Setting) -> list[tuple[float, str, str]]:
    """Return (bytes a layer, formula, what is assumed) of each way to store a DSA latent."""
    if setting.kv_dtype == "auto":
        raise UsageError(
            "the KV dtype of a DSA model depends on the GPU when it is auto",
            hint="give --kv-dtype fp8_e4m3 (Blackwell's default) or bfloat16 (Hopper's)",
        )
    if ELEMENT[setting.kv_dtype] == 2:
        return [((latent + rope) * 2.0, f"({latent} + {rope})", "")]
    if setting.kv_dtype not in ("fp8", "fp8_e4m3"):
        raise UsageError(
            f"a DSA model keeps its KV in bfloat16 or fp8_e4m3, not {setting.kv_dtype}"
        )
    raw = (float(latent + rope), f"({latent} + {rope})", "KV layout trtllm (raw fp8)")
    scales = latent // _DSA_BLOCK * 4
    scaled = (
        float(latent + scales + 2 * rope),
        f"({latent} + {scales} of scales + {rope} x 2)",
        "KV layout flashmla (fp8 with scales)",
    )
    by_layout: dict[Layout | None, list[tuple[float, str, str]]] = {
        "trtllm": [raw],
        "flashmla": [scaled],
        None: [raw, scaled],
    }
    return by_layout[setting.kv_layout]


def _indexer_layers(text: Config, layers: int) -> list[tuple[list[bool], str]]:
    """Return which layers keep an indexer row; two answers where layers share their top-k.

    Source:
        SGLang 0.5.23 `dsa_layer_skips_topk`, `_should_elide_dsa_index_k`: later releases keep
        no row on layers that take over the top-k of the layer before.
    """
    every = [True] * layers
    own = [not _skips_topk(text, i) for i in range(layers)]
    if all(own):
        return [(every, "")]
    return [
        (every, "an indexer row on every layer, as releases before 0.5.23 keep"),
        (own, "no indexer row on layers that share top-k, as 0.5.23 does without HiSparse"),
    ]


def _skips_topk(text: Config, layer: int) -> bool:
    kinds = text.get("indexer_types")
    if isinstance(kinds, list):
        return layer < len(kinds) and kinds[layer] == "shared"
    every = _whole(text.get("cli_factor"), 1)
    if every > 1:
        return layer % every != 0
    pattern = text.get("index_topk_pattern")
    if isinstance(pattern, str | list):
        return layer < len(pattern) and pattern[layer] == "S"
    every = _whole(text.get("index_topk_freq"), 1)
    offset = _whole(text.get("index_skip_topk_offset"), 2)
    return max(layer - offset + 1, 0) % every != 0


def _swa(name: str, text: Config, setting: Setting) -> KvCell:
    """Return the cell of a model with full and sliding-window layers.

    Memory = tokens x (F x full layers + ratio x S x window layers), with F and S the bytes of
    one layer and token: the window pool holds `ratio` x as many tokens as the full one.
    """
    if setting.dcp > 1:
        raise UsageError("DCP does not share sliding-window pools", hint="leave out --dcp")
    width, copies, words = _heads(name, text, setting)
    element = _per_element(setting, name)
    kinds = _swa_kinds(name, text)
    if not setting.swa_memory:
        plain = max(end - start for start, end in _stages(len(kinds), setting))
        return KvCell(
            kind="gqa",
            bytes_per_token=width * element * plain,
            pool_bytes_per_token=width * element * plain,
            draft_bytes_per_token=width * element * setting.draft_layers,
            copies=copies,
            formula=f"{words} x {plain} layers x {_said(setting)}",
            assumes="--disable-hybrid-swa-memory: every layer keeps every token",
        )
    swa_width = _swa_width(text, setting, width)

    def stage_bytes(stage: tuple[int, int]) -> tuple[float, float]:
        swa = sum(kinds[stage[0] : stage[1]])
        full = stage[1] - stage[0] - swa
        return width * element * full, swa_width * element * swa

    def all_bytes(stage: tuple[int, int]) -> float:
        full, swa = stage_bytes(stage)
        return full + setting.swa_ratio * swa

    fullest = max(_stages(len(kinds), setting), key=all_bytes)
    full, swa = stage_bytes(fullest)
    n_swa = sum(kinds[fullest[0] : fullest[1]])
    return KvCell(
        kind="swa",
        bytes_per_token=full + setting.swa_ratio * swa,
        pool_bytes_per_token=full,
        draft_bytes_per_token=width * element * setting.draft_layers,
        copies=copies,
        formula=(
            f"{words} x {fullest[1] - fullest[0] - n_swa} full layers x {_said(setting)} + "
            f"{setting.swa_ratio:g} x {swa_width} x {n_swa} window layers x {_said(setting)}"
        ),
        assumes="full and window pools share the memory as in 0.5.9 and later",
        swa_bytes_per_token=swa,
        swa_ratio=setting.swa_ratio,
        window=_need(text, "sliding_window", "attention_chunk_size", "sliding_window_size"),
    )


def _swa_kinds(name: str, text: Config) -> list[bool]:
    """Return for each layer whether it keeps only a window."""
    layers = _count(name, text)
    if name == "Llama4ForConditionalGeneration":
        return [(i + 1) % 4 != 0 for i in range(layers)]
    field, window = (
        ("hybrid_layer_pattern", 1) if name.startswith("MiMo") else ("layer_types", None)
    )
    kinds = text.get(field)
    if not isinstance(kinds, list) or len(kinds) < layers:
        raise _missing(field)
    return [k == ("sliding_attention" if window is None else window) for k in kinds[:layers]]


def _swa_width(text: Config, setting: Setting, width: int) -> int:
    """Return the K and V elements of a window layer on one rank."""
    other = text.get("attention_other_setting")
    heads = text.get("swa_num_key_value_heads")
    if heads is None and isinstance(other, Mapping):
        heads = other.get("num_attention_groups")
    if heads is None:
        return width
    key = _whole(text.get("swa_head_dim"), 0) or _need(text, "head_dim")
    value = _whole(text.get("swa_v_head_dim"), 0) or _whole(text.get("v_head_dim"), 0) or key
    return max(1, _whole(heads, 1) // setting.attn_tp) * (key + value)


def _state(name: str, text: Config, setting: Setting) -> KvCell:
    """Return the cell of a model in which only some layers keep KV, and a state the others."""
    attention, linear = _state_kinds(name, text)
    if name == "KimiLinearForCausalLM":
        latent, rope = _need(text, "kv_lora_rank"), _need(text, "qk_rope_head_dim")
        width, words = latent + rope, f"({latent} + {rope})"
        copies = setting.attn_tp / setting.dcp
    else:
        width, copies, words = _heads(name, text, setting)
    per_layer = width * _per_element(setting, name)
    stages = _stages(len(attention), setting)
    n_full = max(sum(attention[a:b]) for a, b in stages)
    n_linear = max(sum(linear[a:b]) for a, b in stages)
    conv, ssm, ssm_bytes = _state_elements(name, text, setting)
    state = (conv * 2 + ssm * ssm_bytes) * n_linear
    return KvCell(
        kind="state",
        bytes_per_token=per_layer * n_full / setting.dcp,
        pool_bytes_per_token=per_layer * n_full / setting.dcp,
        draft_bytes_per_token=per_layer * setting.draft_layers,
        copies=copies,
        formula=f"{words} x {n_full} attention layers x {_said(setting)}" + _shared_by(setting),
        assumes=_fp4_note(setting),
        state_bytes=state,
        state_formula=(
            f"({conv} of convolution x 2 bytes + {ssm} x {ssm_bytes} bytes) x {n_linear} layers"
        ),
    )


def _state_kinds(name: str, text: Config) -> tuple[list[bool], list[bool]]:
    """Return for each layer whether it has attention, and whether it has a state."""
    layers = _count(name, text)
    if name == "FalconH1ForCausalLM":
        return [True] * layers, [True] * layers
    if name == "NemotronHForCausalLM":
        pattern = text.get("hybrid_override_pattern")
        if not isinstance(pattern, str) or len(pattern) < layers:
            raise _missing("hybrid_override_pattern")
        return [c == "*" for c in pattern[:layers]], [c == "M" for c in pattern[:layers]]
    if name == "KimiLinearForCausalLM":
        linear = _need_table(text, "linear_attn_config").get("kda_layers")
        if not isinstance(linear, list):
            raise _missing("linear_attn_config.kda_layers")
        state = [i + 1 in linear for i in range(layers)]
        return [not s for s in state], state
    if name.startswith("Qwen3"):
        every = _need(text, "full_attention_interval")
        attention = [(i + 1) % every == 0 for i in range(layers)]
        return attention, [not a for a in attention]
    kinds = text.get("layer_types")
    if not isinstance(kinds, list) or len(kinds) < layers:
        raise _missing("layer_types")
    attention = [k in ("attention", "full_attention") for k in kinds[:layers]]
    return attention, [not a for a in attention]


def _state_elements(name: str, text: Config, setting: Setting) -> tuple[int, int, int]:
    """Return elements of convolution and of SSM state of one layer, and bytes of the latter."""
    tp = setting.attn_tp
    dtype = setting.ssm_dtype or text.get("mamba_ssm_dtype") or "float32"
    if dtype not in _STATE_BYTES:
        raise UsageError(f"{dtype!r} is no dtype of a state", hint="float32, bfloat16, float16")
    size = _STATE_BYTES[dtype]
    if name == "KimiLinearForCausalLM":
        linear = _need_table(text, "linear_attn_config")
        heads, width = _need(linear, "num_heads"), _need(linear, "head_dim")
        conv = 3 * (heads * width // tp) * (_need(linear, "short_conv_kernel_size") - 1)
        return conv, heads // tp * width * width, size
    if name.startswith("Lfm2"):
        return _need(text, "hidden_size") // tp * (_need(text, "conv_L_cache") - 1), 0, size
    names = {
        "Qwen3": (
            "linear_num_value_heads",
            "linear_value_head_dim",
            "linear_num_key_heads",
            "linear_key_head_dim",
            "linear_conv_kernel_dim",
        ),
        "Nemotron": (
            "mamba_num_heads",
            "mamba_head_dim",
            "n_groups",
            "ssm_state_size",
            "conv_kernel",
        ),
    }
    plain = ("mamba_n_heads", "mamba_d_head", "mamba_n_groups", "mamba_d_state", "mamba_d_conv")
    fields = next((f for start, f in names.items() if name.startswith(start)), plain)
    heads, width, groups, state, kernel = (_need(text, field) for field in fields)
    if groups % tp:
        groups += tp - groups  # a group that several ranks need is kept by each
    conv = (heads * width + 2 * groups * state) // tp * (kernel - 1)
    return conv, heads // tp * width * state, size


# -- pieces -------------------------------------------------------------------------------


def _heads(name: str, text: Config, setting: Setting) -> tuple[int, float, str]:
    """Return K and V elements of a layer on one rank, copies of them, and the words for it."""
    total = _kv_heads(name, text)
    key = _whole(text.get("head_dim"), 0)
    if not key:
        if name.startswith(_OWN_HEAD_DIM):
            raise _missing("head_dim")
        key = _need(text, "hidden_size") // _need(text, "num_attention_heads")
    value = _whole(text.get("v_head_dim"), 0) or key
    groups = setting.attn_tp // setting.dcp
    heads = max(1, total // groups)
    words = f"{heads} KV head{'s' * (heads > 1)} x ({key} + {value})"
    return heads * (key + value), heads * groups / total, words


def _kv_heads(name: str, text: Config) -> int:
    aliases = (
        "num_key_value_heads",
        "n_head_kv",
        "num_kv_heads",
        "multi_query_group_num",
        "num_attention_groups",
    )
    if name == "LlamaForCausalLM" and all(text.get(alias) is None for alias in aliases):
        return _need(text, "num_attention_heads")  # configs older than grouped queries
    return _need(text, *aliases)


def _count(name: str, text: Config) -> int:
    """Return the attention layers of the model."""
    if name == "LongcatFlashForCausalLM":
        return 2 * _need(text, "num_layers", "num_hidden_layers")
    return _need(text, "num_hidden_layers")


def _stages(layers: int, setting: Setting) -> list[tuple[int, int]]:
    """Return the layers of each pipeline stage; what is left over goes to the last ones."""
    base, rest = divmod(layers, setting.pp)
    sizes = [base + (rank >= setting.pp - rest) for rank in range(setting.pp)]
    ends = [sum(sizes[: i + 1]) for i in range(setting.pp)]
    return list(zip([0, *ends], ends, strict=False))


def _per_element(setting: Setting, name: str) -> float:
    """Return the bytes of one stored element, its share of scales included."""
    if setting.kv_dtype in FP4:
        return 1 / 2 + 1 / _FP4_BLOCK
    if setting.kv_dtype == "mxfp8":
        if name in _MLA:
            raise UsageError("mxfp8 is no KV dtype of MLA models", hint="use fp8_e4m3")
        return 1 + 1 / _MXFP8_BLOCK
    return float(ELEMENT[setting.kv_dtype])


def _said(setting: Setting) -> str:
    size = _per_element(setting, "")
    return f"{size:g} byte" + "s" * (size != 1)


def _shared_by(setting: Setting) -> str:
    return f" / {setting.dcp} DCP ranks" if setting.dcp > 1 else ""


def _fp4_note(setting: Setting) -> str:
    if setting.kv_dtype not in FP4:
        return ""
    return "fp4 with one scale for 16 elements; from 0.5.19 a recipe may add work buffers"


def check(setting: Setting) -> None:
    """Raise UsageError for a setting that no server can have."""
    if setting.kv_dtype not in ELEMENT:
        raise UsageError(
            f"{setting.kv_dtype!r} is no KV dtype", hint="one of " + ", ".join(ELEMENT)
        )
    for name in ("tp", "pp", "dcp", "dp_attention"):
        if getattr(setting, name) < 1:
            raise UsageError(f"{name.replace('_', '-')} must be at least 1")
    if setting.tp % setting.dp_attention:
        raise UsageError(
            f"tp {setting.tp} cannot be split over {setting.dp_attention} DP-attention ranks",
            hint="--dp-attention must divide --tp",
        )
    if setting.attn_tp % setting.dcp:
        raise UsageError(
            f"{setting.attn_tp} attention ranks cannot be split into DCP groups of {setting.dcp}",
            hint="--dcp must divide --tp / --dp-attention",
        )


def _text_config(config: Config) -> Config:
    """Return the part that describes the language model; the whole of a text model."""
    part: Any = config
    for name in ("thinker_config", "llm_config", "language_config", "text_config"):
        if isinstance(config.get(name), dict):
            part = config[name]
            break
    if isinstance(part.get("text_config"), dict):
        part = part["text_config"]
    found: Config = part
    if "quantization_config" in config and "quantization_config" not in found:
        found = {**found, "quantization_config": config["quantization_config"]}
    return found


def _need(text: Config, *names: str) -> int:
    """Return the first of some fields that is there, as a positive whole number."""
    for name in names:
        value = text.get(name)
        if isinstance(value, list) and value and all(v == value[0] for v in value):
            value = value[0]
        if value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise InputError(f"the model config has {name} = {value!r}, which is no size")
        return value
    raise _missing(*names)


def _need_table(text: Config, name: str) -> Config:
    value = text.get(name)
    if not isinstance(value, Mapping):
        raise _missing(name)
    return value


def _missing(*names: str) -> InputError:
    others = f" (or {', '.join(names[1:])})" if names[1:] else ""
    return InputError(
        f"the model config has no {names[0]}{others}",
        hint="take the config.json of the model itself, not of an adapter or a draft",
    )


def _whole(value: object, default: int) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) else default
