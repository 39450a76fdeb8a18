# SPDX-License-Identifier: Apache-2.0
"""cdgrab: the order in which your model should see its examples."""

from cdgrab._build import TORCH_VERSION, VERSION
from cdgrab._passes import GlobalOrder
from cdgrab.distributed import DistributedSampler
from cdgrab.errors import CommunicationError, Error, FileError, InvariantError, StateMismatch, UserError
from cdgrab.geometry import GradientGeometry, gram, norms
from cdgrab.rows import example_of_row
from cdgrab.sampler import BatchSampler, Sampler

__version__ = VERSION
__all__ = [
    "TORCH_VERSION",
    "BatchSampler",
    "CommunicationError",
    "DistributedSampler",
    "Error",
    "FileError",
    "GlobalOrder",
    "GradientGeometry",
    "InvariantError",
    "Sampler",
    "StateMismatch",
    "UserError",
    "example_of_row",
    "gram",
    "norms",
]
