"""A Gymnasium environment, built from a Hydra configuration and played by text.

- An episode is its seed and its actions, both in the metadata; a step resets with the seed, plays the actions again
  and adds the new one. So no episode is bound to a replica and none is left open, at the price of steps that grow
  with the episode: meant for small, deterministic environments.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import gymnasium
import numpy as np
from hydra.utils import instantiate
from omegaconf import OmegaConf

from greenroom.environments.interfaces import ItemReturn, ItemwiseEnvironment, Message, MessageLog, Metadata
from greenroom.environments.replies import last_reply, tagged


class GymnasiumEnvironment(ItemwiseEnvironment):
    """Rewards a reply with what its `<action>…</action>` (JSON: a number or a list) earns in the environment.

    Args:
        config: what Hydra instantiates, such as `{"_target_": "gymnasium.make", "id": "FrozenLake-v1"}`; or the path
            of a YAML file that holds it. It decides what code runs: take it from people you trust.
        max_actions: how many actions an episode may take.

    Raises:
        TypeError: the configuration builds something else than a Gymnasium environment.
        Exception: what Hydra or the environment raises for a bad configuration.
    """

    STOP_STRINGS = ("</action>",)

    def __init__(self, config: Mapping[str, Any] | str, *, max_actions: int = 200) -> None:
        loaded = OmegaConf.load(config) if isinstance(config, str) else OmegaConf.create(dict(config))
        self.env = instantiate(loaded)
        if not isinstance(self.env, gymnasium.Env):
            raise TypeError(f"the configuration builds a {type(self.env).__name__}, not a Gymnasium environment")
        self.max_actions = max_actions

    def new_episode(self, seed: int) -> tuple[Message, Metadata]:
        """Return an episode's first message and its metadata (`seed`, `actions`); the same seed gives the same one."""
        observation, _ = self.env.reset(seed=seed)
        text = f"Actions: {self.env.action_space}. Answer with <action>…</action>.\n{_as_text(observation)}"
        return Message(role="user", content=text), {"seed": seed, "actions": []}

    def step_item(self, message_log: MessageLog, metadata: Metadata) -> ItemReturn:
        """Take one action (see `ItemwiseEnvironment.step_item`). One that is not possible ends the episode.

        Raises:
            KeyError: the metadata has no `seed` or no `actions`.
            ValueError: there is no reply, or the actions so far already ended the episode.
        """
        actions = list(metadata["actions"])
        text = tagged(last_reply(message_log), "action")
        action = self._action(text)
        if action is None:
            return ItemReturn(
                observation="This action is not possible.",
                reward=0.0,
                terminated=True,
                metadata=metadata,
                answer=text,
            )
        self.env.reset(seed=int(metadata["seed"]))
        for earlier in actions:
            *_, terminated, truncated, _ = self.env.step(self._in_space(earlier))
            if terminated or truncated:
                raise ValueError("the episode has already ended")
        observation, reward, terminated, truncated, _ = self.env.step(self._in_space(action))
        actions.append(action)
        return ItemReturn(
            observation=_as_text(observation),
            reward=float(reward),
            terminated=bool(terminated or truncated or len(actions) >= self.max_actions),
            metadata={"seed": metadata["seed"], "actions": actions},
            next_stop_strings=self.STOP_STRINGS,
            answer=text,
        )

    def shutdown(self) -> None:
        """Close the Gymnasium environment."""
        self.env.close()

    def _action(self, text: str | None) -> Any:
        # The action as JSON data, or None when the text is no action of this environment.
        try:
            action = json.loads(text or "")
            return action if self.env.action_space.contains(self._in_space(action)) else None
        except (ValueError, TypeError):
            return None

    def _in_space(self, action: Any) -> Any:
        # Discrete actions stay plain integers; environments use them as keys.
        return np.asarray(action, dtype=self.env.action_space.dtype) if self.env.action_space.shape else action


def _as_text(observation: Any) -> str:
    return json.dumps(observation, default=lambda value: value.tolist())
