# SPDX-License-Identifier: Apache-2.0
import pytest
import torch


@pytest.fixture(autouse=True)
def _same_every_time():
    torch.manual_seed(0)
    torch.set_num_threads(1)
