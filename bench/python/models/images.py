# SPDX-License-Identifier: Apache-2.0
"""Images in: the blocks that well-known nets are made of."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from .case import Case, classifier, pixel_loss, pixel_losses

SHAPE = (3, 16, 16)
Norm = Callable[[int], nn.Module]


def group_norm(channels: int) -> nn.Module:
    return nn.GroupNorm(4, channels)


def pooled_head(channels: int) -> nn.Sequential:
    return nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, 10))


def lenet() -> Case:
    model = nn.Sequential(
        *(nn.Conv2d(1, 6, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(6, 16, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()),
        *(nn.Linear(16 * 5 * 5, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, 10)),
    )
    return classifier(model, (1, 28, 28))


class BasicBlock(nn.Module):
    def __init__(self, inner: int, outer: int, stride: int, norm: Norm) -> None:
        super().__init__()
        self.body = nn.Sequential(
            *(nn.Conv2d(inner, outer, 3, stride, 1, bias=False), norm(outer), nn.ReLU()),
            *(nn.Conv2d(outer, outer, 3, 1, 1, bias=False), norm(outer)),
        )
        self.skip = nn.Sequential(nn.Conv2d(inner, outer, 1, stride, bias=False), norm(outer))

    def forward(self, x: Tensor) -> Tensor:
        return (self.body(x) + self.skip(x)).relu()  # type: ignore[no-any-return]


def residual(norm: Norm) -> nn.Module:
    return nn.Sequential(
        *(nn.Conv2d(3, 16, 3, padding=1, bias=False), norm(16), nn.ReLU()),
        *(BasicBlock(16, 16, 1, norm), BasicBlock(16, 32, 2, norm), pooled_head(32)),
    )


def resnet_batch_norm() -> Case:
    return classifier(residual(nn.BatchNorm2d), SHAPE, mixes=True)


def resnet_batch_norm_frozen() -> Case:
    return classifier(residual(nn.BatchNorm2d).eval(), SHAPE)


def resnet_group_norm() -> Case:
    return classifier(residual(group_norm), SHAPE)


def vgg() -> Case:
    model = nn.Sequential(
        *(nn.Conv2d(3, 16, 3, padding=1), nn.ReLU(inplace=True), nn.Conv2d(16, 16, 3, padding=1)),
        *(nn.ReLU(inplace=True), nn.MaxPool2d(2), nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(inplace=True)),
        *(nn.MaxPool2d(2), nn.Flatten(), nn.Linear(32 * 16, 128), nn.ReLU(inplace=True), nn.Linear(128, 10)),
    )
    return classifier(model, SHAPE)


class InvertedResidual(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        wide = 4 * channels
        self.body = nn.Sequential(
            *(nn.Conv2d(channels, wide, 1, bias=False), nn.BatchNorm2d(wide), nn.ReLU6()),
            *(nn.Conv2d(wide, wide, 3, padding=1, groups=wide, bias=False), nn.BatchNorm2d(wide), nn.ReLU6()),
            *(nn.Conv2d(wide, channels, 1, bias=False), nn.BatchNorm2d(channels)),
        )

    def forward(self, x: Tensor) -> Tensor:
        return x + self.body(x)  # type: ignore[no-any-return]


def mobilenet() -> Case:
    model = nn.Sequential(
        *(nn.Conv2d(3, 16, 3, 2, 1, bias=False), nn.BatchNorm2d(16), nn.ReLU6()),
        *(InvertedResidual(16), InvertedResidual(16), pooled_head(16)),
    )
    return classifier(model, SHAPE, mixes=True)


class ConvNextBlock(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.depthwise = nn.Conv2d(channels, channels, 7, padding=3, groups=channels)
        self.norm = nn.LayerNorm(channels)
        self.pointwise = nn.Sequential(nn.Linear(channels, 4 * channels), nn.GELU(), nn.Linear(4 * channels, channels))
        self.scale = nn.Parameter(torch.full((channels, 1, 1), 0.1))

    def forward(self, x: Tensor) -> Tensor:
        h = self.pointwise(self.norm(self.depthwise(x).permute(0, 2, 3, 1)))
        return x + self.scale * h.permute(0, 3, 1, 2)  # type: ignore[no-any-return]


def convnext() -> Case:
    return classifier(
        nn.Sequential(nn.Conv2d(3, 32, 2, stride=2), ConvNextBlock(32), ConvNextBlock(32), pooled_head(32)), SHAPE
    )


class DenseLayer(nn.Module):
    def __init__(self, channels: int, growth: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.BatchNorm2d(channels), nn.ReLU(), nn.Conv2d(channels, growth, 3, padding=1, bias=False)
        )

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([x, self.body(x)], 1)


def densenet() -> Case:
    model = nn.Sequential(
        *(nn.Conv2d(3, 16, 3, padding=1, bias=False), DenseLayer(16, 8), DenseLayer(24, 8), DenseLayer(32, 8)),
        *(nn.BatchNorm2d(40), nn.ReLU(), pooled_head(40)),
    )
    return classifier(model, SHAPE, mixes=True)


class UNet(nn.Module):
    def __init__(self, classes: int) -> None:
        super().__init__()
        self.down = nn.Sequential(nn.Conv2d(3, 16, 3, padding=1), nn.GroupNorm(4, 16), nn.ReLU())
        self.bottom = nn.Sequential(nn.MaxPool2d(2), nn.Conv2d(16, 32, 3, padding=1), nn.ReLU())
        self.up = nn.ConvTranspose2d(32, 16, 2, stride=2)
        self.head = nn.Conv2d(32, classes, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        high = self.down(x)
        return self.head(torch.cat([high, self.up(self.bottom(high))], 1))  # type: ignore[no-any-return]


def unet() -> Case:
    def examples(batch: int) -> tuple[Tensor, Tensor]:
        return torch.randn(batch, *SHAPE), torch.randint(4, (batch, *SHAPE[1:]))

    return Case(UNet(4), examples, pixel_loss, pixel_losses)


def volumes() -> Case:
    model = nn.Sequential(
        *(nn.Conv3d(1, 8, 3, padding=1), nn.GroupNorm(2, 8), nn.ReLU(), nn.MaxPool3d(2)),
        *(nn.Conv3d(8, 16, 3), nn.ReLU(), nn.AdaptiveAvgPool3d(1), nn.Flatten(), nn.Linear(16, 10)),
    )
    return classifier(model, (1, 10, 10, 10))


def dilated_and_grouped() -> Case:
    model = nn.Sequential(
        *(nn.Conv1d(8, 32, 3, dilation=2, padding=2), nn.ReLU(), nn.Conv1d(32, 32, 3, dilation=4, groups=4)),
        *(nn.ReLU(), nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(32, 10)),
    )
    return classifier(model, (8, 64))
