"""Real models, from the definitions of public packages, small and with random weights; nothing is fetched.

Each function gives a model and a forward that returns a loss. They need the extra `models`.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import torch

os.environ.setdefault("HF_HUB_OFFLINE", "1")

Model = tuple[torch.nn.Module, Callable[[], Any]]
WORDS = 50
MODELS: dict[str, Callable[[], Model]] = {}


def listed(function: Callable[[], Model]) -> Callable[[], Model]:
    """Put a model into the table."""
    MODELS[function.__name__] = function
    return function


def words(batch: int = 2, length: int = 6) -> torch.Tensor:
    return torch.randint(3, WORDS, (batch, length))


def language_model(model: torch.nn.Module) -> Model:
    """A transformer with its loss on random words."""
    tokens = words()
    return model, lambda: model(input_ids=tokens, labels=tokens).loss


def sizes(**others: Any) -> dict[str, Any]:
    """What most configurations of transformers share."""
    return {
        "vocab_size": WORDS,
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "intermediate_size": 64,
        "max_position_embeddings": 32,
        "pad_token_id": 0,
    } | others


@listed
def gpt2() -> Model:
    from transformers import GPT2Config, GPT2LMHeadModel

    return language_model(
        GPT2LMHeadModel(GPT2Config(vocab_size=WORDS, n_embd=32, n_layer=2, n_head=4, bos_token_id=1, eos_token_id=2))
    )


@listed
def llama() -> Model:
    from transformers import LlamaConfig, LlamaForCausalLM

    return language_model(LlamaForCausalLM(LlamaConfig(**sizes(num_key_value_heads=2))))


@listed
def llama_sdpa_checkpointed() -> Model:
    model, forward = llama()
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    return model.train(), forward


@listed
def qwen3() -> Model:
    from transformers import Qwen3Config, Qwen3ForCausalLM

    return language_model(Qwen3ForCausalLM(Qwen3Config(**sizes(num_key_value_heads=2, head_dim=8))))


@listed
def mixtral_experts_eager() -> Model:
    from transformers import MixtralConfig, MixtralForCausalLM

    config = MixtralConfig(**sizes(num_key_value_heads=2, num_local_experts=4), experts_implementation="eager")
    return language_model(MixtralForCausalLM(config))


@listed
def mixtral() -> Model:
    from transformers import MixtralConfig, MixtralForCausalLM

    return language_model(MixtralForCausalLM(MixtralConfig(**sizes(num_key_value_heads=2, num_local_experts=4))))


@listed
def mamba2() -> Model:
    from transformers import Mamba2Config, Mamba2ForCausalLM

    config = Mamba2Config(
        vocab_size=WORDS, hidden_size=16, num_heads=4, head_dim=8, state_size=8, n_groups=1, num_hidden_layers=2,
        chunk_size=4, pad_token_id=0, bos_token_id=1, eos_token_id=2,
    )  # fmt: skip
    return language_model(Mamba2ForCausalLM(config))


@listed
def bert() -> Model:
    from transformers import BertConfig, BertForMaskedLM

    return language_model(BertForMaskedLM(BertConfig(**sizes())))


@listed
def deberta_v2() -> Model:
    from transformers import DebertaV2Config, DebertaV2ForMaskedLM

    config = DebertaV2Config(**sizes(relative_attention=True, pos_att_type=["p2c", "c2p"]))
    return language_model(DebertaV2ForMaskedLM(config))


@listed
def t5() -> Model:
    from transformers import T5Config, T5ForConditionalGeneration

    return language_model(
        T5ForConditionalGeneration(
            T5Config(vocab_size=WORDS, d_model=32, d_kv=8, d_ff=64, num_layers=2, num_heads=4, decoder_start_token_id=0)
        )
    )


@listed
def vit() -> Model:
    from transformers import ViTConfig, ViTForImageClassification

    config = ViTConfig(
        hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64, image_size=16, patch_size=8
    )
    model, images = ViTForImageClassification(config), torch.randn(2, 3, 16, 16)
    return model, lambda: model(pixel_values=images, labels=torch.tensor([0, 1])).loss


@listed
def vit_mae() -> Model:
    from transformers import ViTMAEConfig, ViTMAEForPreTraining

    config = ViTMAEConfig(
        hidden_size=32, num_hidden_layers=1, num_attention_heads=4, intermediate_size=64, image_size=16, patch_size=8,
        decoder_hidden_size=32, decoder_num_hidden_layers=1, decoder_num_attention_heads=4,
        decoder_intermediate_size=64,
    )  # fmt: skip
    model, images = ViTMAEForPreTraining(config), torch.randn(1, 3, 16, 16)
    return model, lambda: model(pixel_values=images).loss


@listed
def swin() -> Model:
    from transformers import SwinConfig, SwinForImageClassification

    config = SwinConfig(image_size=32, patch_size=4, embed_dim=16, depths=[1, 1], num_heads=[2, 2], window_size=4)
    model, images = SwinForImageClassification(config), torch.randn(2, 3, 32, 32)
    return model, lambda: model(pixel_values=images, labels=torch.tensor([0, 1])).loss


@listed
def segformer() -> Model:
    from transformers import SegformerConfig, SegformerForSemanticSegmentation

    config = SegformerConfig(
        depths=[1, 1], num_encoder_blocks=2, sr_ratios=[2, 1], hidden_sizes=[8, 16], num_attention_heads=[1, 2],
        patch_sizes=[7, 3], strides=[4, 2], mlp_ratios=[2, 2], decoder_hidden_size=16, num_labels=3,
    )  # fmt: skip
    model, images = SegformerForSemanticSegmentation(config), torch.randn(1, 3, 32, 32)
    return model, lambda: model(pixel_values=images, labels=torch.randint(0, 3, (1, 32, 32))).loss


@listed
def convnext() -> Model:
    from transformers import ConvNextConfig, ConvNextForImageClassification

    model = ConvNextForImageClassification(ConvNextConfig(hidden_sizes=[8, 16], depths=[1, 1], num_stages=2))
    images = torch.randn(2, 3, 32, 32)
    return model, lambda: model(pixel_values=images, labels=torch.tensor([0, 1])).loss


@listed
def resnet() -> Model:
    from transformers import ResNetConfig, ResNetForImageClassification

    config = ResNetConfig(embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1], layer_type="basic")
    model, images = ResNetForImageClassification(config), torch.randn(2, 3, 32, 32)
    return model, lambda: model(pixel_values=images, labels=torch.tensor([0, 1])).loss


@listed
def wavlm() -> Model:
    from transformers import WavLMConfig, WavLMForCTC

    config = WavLMConfig(
        **sizes(vocab_size=12), conv_dim=[8, 8], conv_kernel=[10, 3], conv_stride=[5, 2], num_feat_extract_layers=2,
        num_conv_pos_embeddings=16, num_conv_pos_embedding_groups=2, mask_time_prob=0.0,
    )  # fmt: skip
    model, sound = WavLMForCTC(config), torch.randn(2, 400)
    labels = torch.randint(1, 12, (2, 4))
    return model, lambda: model(input_values=sound, labels=labels).loss


@listed
def whisper() -> Model:
    from transformers import WhisperConfig, WhisperForConditionalGeneration

    config = WhisperConfig(
        vocab_size=WORDS, d_model=32, encoder_layers=1, decoder_layers=1, encoder_attention_heads=4,
        decoder_attention_heads=4, encoder_ffn_dim=64, decoder_ffn_dim=64, num_mel_bins=8, max_source_positions=16,
        max_target_positions=16, pad_token_id=0, bos_token_id=1, eos_token_id=2, decoder_start_token_id=1,
    )  # fmt: skip
    model, features, tokens = WhisperForConditionalGeneration(config), torch.randn(2, 8, 32), words()
    return model, lambda: model(input_features=features, labels=tokens).loss


@listed
def clip() -> Model:
    from transformers import CLIPConfig, CLIPModel

    text = sizes(bos_token_id=1, eos_token_id=2)
    vision = {k: text[k] for k in ("hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size")}
    config = CLIPConfig(text_config=text, vision_config=vision | {"image_size": 16, "patch_size": 8}, projection_dim=16)
    model, images, tokens = CLIPModel(config), torch.randn(2, 3, 16, 16), words()
    return model, lambda: model(input_ids=tokens, pixel_values=images, return_loss=True).loss


@listed
def sam() -> Model:
    from transformers import SamConfig, SamModel

    vision = {
        "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "image_size": 32, "patch_size": 8,
        "output_channels": 16, "window_size": 2, "global_attn_indexes": [1], "mlp_dim": 64,
        "num_pos_feats": 8,
    }  # fmt: skip
    prompt = {"hidden_size": 16, "image_size": 32, "patch_size": 8, "mask_input_channels": 4, "image_embedding_size": 4}
    mask = {"hidden_size": 16, "mlp_dim": 32, "num_attention_heads": 2, "iou_head_hidden_dim": 16}
    model = SamModel(SamConfig(vision_config=vision, prompt_encoder_config=prompt, mask_decoder_config=mask))
    images, points = torch.randn(1, 3, 32, 32), torch.rand(1, 1, 1, 2) * 32
    return model, lambda: model(pixel_values=images, input_points=points).pred_masks.square().mean()


@listed
def rt_detr() -> Model:
    from transformers import RTDetrConfig, RTDetrForObjectDetection, RTDetrResNetConfig

    backbone = RTDetrResNetConfig(
        embedding_size=8, hidden_sizes=[8, 8, 16, 16], depths=[1, 1, 1, 1], layer_type="basic",
        out_features=["stage2", "stage3", "stage4"],
    )  # fmt: skip
    config = RTDetrConfig(
        backbone_config=backbone, encoder_hidden_dim=32, encoder_in_channels=[8, 16, 16], encoder_ffn_dim=32,
        encoder_attention_heads=2, d_model=32, decoder_in_channels=[32, 32, 32], decoder_ffn_dim=32, decoder_layers=1,
        decoder_attention_heads=2, num_queries=5, num_denoising=0, num_labels=3,
    )  # fmt: skip
    model, images = RTDetrForObjectDetection(config), torch.randn(1, 3, 64, 64)
    return model, lambda: model(pixel_values=images).logits.square().mean()


@listed
def peft_lora() -> Model:
    from peft import LoraConfig, get_peft_model

    model, _ = llama()
    return language_model(get_peft_model(model, LoraConfig(r=4, target_modules=["q_proj", "v_proj"])))


@listed
def diffusers_unet() -> Model:
    from diffusers import UNet2DModel

    model = UNet2DModel(
        sample_size=8, in_channels=3, out_channels=3, layers_per_block=1, block_out_channels=(8, 16),
        down_block_types=("DownBlock2D", "AttnDownBlock2D"), up_block_types=("AttnUpBlock2D", "UpBlock2D"),
        norm_num_groups=4, attention_head_dim=4,
    )  # fmt: skip
    images, time = torch.randn(2, 3, 8, 8), torch.tensor([3, 7])
    return model, lambda: model(images, time).sample.square().mean()


@listed
def diffusers_vq() -> Model:
    from diffusers import VQModel

    model = VQModel(
        block_out_channels=(8,), down_block_types=("DownEncoderBlock2D",), up_block_types=("UpDecoderBlock2D",),
        layers_per_block=1, latent_channels=4, num_vq_embeddings=16, norm_num_groups=4,
    )  # fmt: skip
    images = torch.randn(1, 3, 8, 8)
    return model, lambda: model(images).sample.square().mean()
