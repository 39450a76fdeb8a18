# SPDX-License-Identifier: Apache-2.0
"""The models of the table, by family."""

from __future__ import annotations

from . import dense, images, pretrained, ragged, sequences
from .case import Entry

CATALOGUE = [
    Entry("dense", "logistic", dense.logistic, "logistic regression"),
    Entry("dense", "mlp", dense.mlp, "MLP, 3 layers"),
    Entry("dense", "bilinear", dense.bilinear, "`nn.Bilinear`"),
    Entry("dense", "soft_experts", dense.soft_experts, "mixture of 4 experts, soft gates"),
    Entry("dense", "routed_experts", dense.routed_experts, "mixture of 2 experts, each example to one"),
    Entry("dense", "embedding_bag", sequences.embedding_bag, "`nn.EmbeddingBag` classifier"),
    Entry("made weights", "weight_norm", dense.weight_normed, "MLP, weight norm"),
    Entry("made weights", "spectral_norm", dense.spectral_normed, "MLP, spectral norm, in training"),
    Entry("made weights", "custom_function", dense.custom_function, "`autograd.Function` with a parameter"),
    Entry("convolutions", "lenet", images.lenet, "LeNet-5"),
    Entry("convolutions", "vgg", images.vgg, "VGG-like, in-place ReLU"),
    Entry("convolutions", "resnet_bn", images.resnet_batch_norm, "ResNet blocks, batch norm in training"),
    Entry("convolutions", "resnet_bn_eval", images.resnet_batch_norm_frozen, "ResNet blocks, batch norm in eval"),
    Entry("convolutions", "resnet_gn", images.resnet_group_norm, "ResNet blocks, group norm"),
    Entry("convolutions", "mobilenet", images.mobilenet, "MobileNet inverted residuals, batch norm"),
    Entry("convolutions", "convnext", images.convnext, "ConvNeXt blocks"),
    Entry("convolutions", "densenet", images.densenet, "DenseNet-like, batch norm"),
    Entry("convolutions", "unet", images.unet, "U-Net, `ConvTranspose2d`"),
    Entry("convolutions", "conv3d", images.volumes, "3-d convolutions"),
    Entry("convolutions", "dilated", images.dilated_and_grouped, "1-d convolutions, dilated and grouped"),
    Entry("recurrent", "lstm", sequences.lstm, "`nn.LSTM`, 2 layers, batch first"),
    Entry("recurrent", "lstm_bidirectional", sequences.lstm_both_ways, "`nn.LSTM`, bidirectional"),
    Entry("recurrent", "lstm_time_first", sequences.lstm_time_first, "`nn.LSTM`, time first"),
    Entry("recurrent", "lstm_proj", sequences.lstm_projected, "`nn.LSTM` with `proj_size`"),
    Entry("recurrent", "gru", sequences.gru, "`nn.GRU`"),
    Entry("recurrent", "rnn", sequences.rnn, "`nn.RNN`"),
    Entry("recurrent", "lstm_lm", sequences.lstm_language_model, "LSTM language model, tied head"),
    Entry("attention", "attention", sequences.attention, "`nn.MultiheadAttention`"),
    Entry("attention", "encoder", sequences.encoder, "`nn.TransformerEncoder`, batch first"),
    Entry("attention", "encoder_time_first", sequences.encoder_time_first, "`nn.TransformerEncoder`, time first"),
    Entry("attention", "decoder", sequences.decoder, "`nn.TransformerDecoder` language model"),
    Entry("ragged", "rows", ragged.rows, "ragged batch, rows named"),
    Entry("ragged", "row_attention", ragged.row_attention, "the same with attention and a block mask"),
    Entry("ragged", "packed_lstm", ragged.packed_lstm, "`nn.LSTM` on packed sequences, 2 layers, bidirectional"),
    Entry("Transformers", "gpt2", pretrained.gpt2, "GPT-2"),
    Entry("Transformers", "bert", pretrained.bert, "BERT"),
    Entry("Transformers", "t5", pretrained.t5, "T5"),
    Entry("Transformers", "llama", pretrained.llama, "Llama"),
    Entry("Transformers", "vit", pretrained.vit, "ViT"),
    Entry("Transformers", "gpt2_lora", pretrained.gpt2_lora, "GPT-2 with PEFT LoRA"),
    Entry("ways to run", "float64", dense.doubles, "MLP in float64"),
    Entry("ways to run", "autocast", dense.autocast, "MLP, bfloat16 autocast"),
    Entry("ways to run", "checkpoint", dense.checkpointed, "MLP, checkpointed"),
    Entry("ways to run", "compile", dense.compiled, "MLP, `torch.compile` (aot_eager)"),
]
