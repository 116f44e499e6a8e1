"""Tests what the platform makes of the layers that a machine has."""

from __future__ import annotations

import pytest

from guanaco.errors import InvalidSettings
from guanaco_server.confinement.layers import CALLS, FILES, PORTS, USER, Layer, require


def test_every_layer_but_an_own_user_is_required() -> None:
    require([Layer(FILES, True, "Yes."), Layer(USER, False, "Not as root.")])
    with pytest.raises(InvalidSettings, match=f"not in force: {FILES}, {PORTS}") as caught:
        require(
            [
                Layer(FILES, False, "No Landlock."),
                Layer(CALLS, True, "Yes."),
                Layer(PORTS, False, "No."),
            ]
        )
    assert "No Landlock." in str(caught.value.hint)
