import socket

import hypothesis
import pytest
import torch

# Two threads on two busy cores are slower than one, and make times, not values, depend on the
# neighbours.
torch.set_num_threads(1)
hypothesis.settings.register_profile("segcal", deadline=None, max_examples=60, derandomize=True)
hypothesis.settings.load_profile("segcal")


@pytest.fixture(autouse=True)
def _seeded():
    torch.manual_seed(0)


@pytest.fixture
def unused_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]
