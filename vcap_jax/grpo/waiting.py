"""The train state between two updates, parts of which wait in the host's memory while captions are drawn.

What an update needs is on the devices when it begins. Before that it is on its way: parameters come back when the last
caption is drawn, the optimizer's moments while the judge gives its last answers. They leave when the update is done,
while the step is logged and saved and the next pictures are looked at; parameters, which captions are drawn with a copy
of, when that copy is made. The numbers are the same in either place, so nothing that is computed depends on it.

Arrays that have left are given up on the devices (``parallel.host_memory``), so a state is asked for where it is used
and not kept beside this.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import replace

import jax

from vcap_jax.models.policy import Params
from vcap_jax.parallel.host_memory import sent, to_devices
from vcap_jax.rollout.config import Offloaded
from vcap_jax.training.optimizer import TrainState


def nothing_taken(params: Params) -> tuple[()]:
    """Captions are drawn with a copy of every parameter."""
    del params
    return ()


class WaitingState:
    """A train state, which this may move.

    offload: what waits, see ``RolloutConfig.offload``. taken: gives those of the parameters that captions are drawn
    with as they are (``GroupSampler.taken``); they stay on the devices.
    """

    def __init__(
        self,
        state: TrainState,
        offload: Collection[Offloaded] = (),
        taken: Callable[[Params], Iterable[jax.Array]] = nothing_taken,
    ) -> None:
        self._state, self._offload, self._taken = state, frozenset(offload), taken
        self.updated(state)

    @property
    def state(self) -> TrainState:
        """As it lies now. Between two steps its parameters are on the devices."""
        return self._state

    def updated(self, state: TrainState) -> None:
        """Takes the state that an update has given, and begins to send the optimizer's part away."""
        self._state = state
        if "optimizer" in self._offload:
            self._state = replace(state, opt_state=sent(state.opt_state))

    def make_room(self) -> None:
        """Sends the parameters away: the copy that draws is made, or its making has begun. Returns when the devices
        have got rid of all that waits."""
        state = self._state
        if "parameters" in self._offload:
            state = self._state = replace(state, params=sent(state.params, keep=self._taken(state.params)))
        if self._offload:
            jax.block_until_ready((state.params, state.opt_state))

    def drawn(self) -> None:
        """Begins to bring the parameters back: the captions are drawn."""
        if "parameters" in self._offload:
            self._state = replace(self._state, params=to_devices(self._state.params))

    def due(self) -> None:
        """Begins to bring back what else the next update needs."""
        if "optimizer" in self._offload:
            self._state = replace(self._state, opt_state=to_devices(self._state.opt_state))
