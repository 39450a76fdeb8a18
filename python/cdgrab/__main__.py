# SPDX-License-Identifier: Apache-2.0
"""python -m cdgrab: what is installed, and whether it works."""

from __future__ import annotations

import sys


def main() -> int:
    import torch

    print(f"python  {sys.version.split()[0]}  {sys.executable}")
    print(f"torch   {torch.__version__}  {torch.__file__}")
    try:
        import cdgrab
        from cdgrab._native import LIBRARY
    except ImportError as error:
        print(f"cdgrab  cannot be loaded: {error}")
        return 1
    print(f"cdgrab  {cdgrab.__version__}, for torch {cdgrab.TORCH_VERSION}  {LIBRARY}")
    model = torch.nn.Linear(4, 2)
    sampler = cdgrab.Sampler(6, order="pair")
    batch = list(sampler)
    loss = model(torch.randn(6, 4)).square().sum(1).mean()
    sampler.observe(loss, len(batch))
    loss.backward()
    print(f"works   6 examples observed, next order {sampler.next_order().tolist()}")
    print("use     sampler = cdgrab.Sampler(len(dataset)), and sampler.observe(loss, len(x)) before loss.backward()")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
