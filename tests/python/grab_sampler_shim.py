# SPDX-License-Identifier: Apache-2.0
"""The published grab-sampler (PyPI 0.1.3), made to run beside torch 2.13.

It imports packages that nothing here calls, and hands an argument to a Sampler.__init__ that is no longer there.
Both are met while it is imported or constructed, and undone after.
"""

import importlib.util
import logging
import sys
from types import ModuleType
from unittest.mock import patch

import torch.utils.data

_IMPORTED_NAMES = {
    "absl": {"logging": logging},
    "pandas": {"DataFrame": object},
    "sklearn": {},
    "sklearn.random_projection": {"johnson_lindenstrauss_min_dim": None, "_check_density": None},
    "torch_sparse": {"SparseTensor": type("SparseTensor", (), {})},
    "torchopt": {},
    "torchopt.typing": {"OptState": object},
}


def _import():
    """The package, with stubs for what is not imported; none stays behind for others to stumble upon."""
    stubs = _IMPORTED_NAMES.keys() - sys.modules.keys()
    for name in stubs:
        sys.modules[name] = ModuleType(name)
        vars(sys.modules[name]).update(_IMPORTED_NAMES[name])
    try:
        import grabsampler
        import grabsampler.sorter.beta  # otherwise imported when the first sampler is made
    finally:
        for name in stubs:
            del sys.modules[name]
    return grabsampler


def published():
    """The package; skips the test where it is not installed."""
    if importlib.util.find_spec("grabsampler") is None:
        import pytest

        pytest.skip("grab-sampler is not installed: pip install --no-deps grab-sampler==0.1.3 overrides==7.7.0")
    return _import()


def published_sampler(data_source, trainable_params, **options):
    """GraBSampler(..), in float64 unless told otherwise."""
    package = published()
    with patch.object(torch.utils.data.Sampler, "__init__", lambda self, data_source: None):
        return package.GraBSampler(data_source, trainable_params, **{"dtype": torch.float64, **options})
