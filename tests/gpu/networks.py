"""Networks that are trained on GPUs: ResNet-18, and a small one, on images that are generated."""

from __future__ import annotations

import torch
from torch import nn

CLASSES = 10


class Residual(nn.Module):
    """Two convolutions around which the input goes on."""

    def __init__(self, inside: int, outside: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(inside, outside, 3, stride, 1, bias=False),
            nn.BatchNorm2d(outside),
            nn.ReLU(inplace=True),
            nn.Conv2d(outside, outside, 3, 1, 1, bias=False),
            nn.BatchNorm2d(outside),
        )
        same = stride == 1 and inside == outside
        self.around: nn.Module = nn.Identity()
        if not same:
            self.around = nn.Sequential(nn.Conv2d(inside, outside, 1, stride, bias=False), nn.BatchNorm2d(outside))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = torch.relu(self.body(images) + self.around(images))
        return found


def resnet18() -> nn.Sequential:
    """ResNet-18 of He et al. 2016 (arXiv:1512.03385), 11.2 million weights, for images of 3 x 64 x 64."""
    torch.manual_seed(0)
    stages = [(64, 64, 1), (64, 128, 2), (128, 256, 2), (256, 512, 2)]
    blocks = [block for inside, outside, stride in stages for block in _stage(inside, outside, stride)]
    return nn.Sequential(
        nn.Conv2d(3, 64, 7, 2, 3, bias=False),
        nn.BatchNorm2d(64),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(3, 2, 1),
        *blocks,
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(512, CLASSES),
    )


def _stage(inside: int, outside: int, stride: int) -> list[Residual]:
    return [Residual(inside, outside, stride), Residual(outside, outside, 1)]


def small() -> nn.Sequential:
    """Two layers, whose training costs next to nothing."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(3 * 8 * 8, 64), nn.ReLU(), nn.Linear(64, CLASSES))


NETWORKS = {"resnet18": (resnet18, 64), "small": (small, 8)}
"""Networks by name, and the side of their images."""


def images(samples: int, side: int, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """Generated images and labels, the same everywhere: a label is the place of a bright row."""
    generator = torch.Generator().manual_seed(1)
    labels = torch.randint(CLASSES, (samples,), generator=generator)
    found = torch.randn(samples, 3, side, side, generator=generator) * 0.5
    rows = labels * side // CLASSES
    found[torch.arange(samples), :, rows] += 2.0
    return found.to(device), labels.to(device)
