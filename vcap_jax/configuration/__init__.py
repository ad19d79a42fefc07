"""Typed configuration: YAML files and dotted overrides into nested frozen dataclasses.

A schema is a tree of standard dataclasses; its annotations are the only statement of what a key may hold.
Values are checked strictly (a quoted number is no number, a boolean no integer, an integer is a float) and
every problem of a configuration is reported at once, each by its full dotted name.
"""

from vcap_jax.configuration.describing import describe
from vcap_jax.configuration.dialect import dump_config, parse_yaml, plain
from vcap_jax.configuration.errors import ConfigError
from vcap_jax.configuration.loading import load_config

__all__ = ["ConfigError", "describe", "dump_config", "load_config", "parse_yaml", "plain"]
