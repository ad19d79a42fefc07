"""Settings: frozen dataclasses, read from YAML files and dotted overrides.

A field states a setting's type, bounds, default and meaning; nothing states them again. Values are
checked strictly (a quoted number is no number, a boolean no integer, an integer is a float) and every
problem of a configuration is reported at once, each by its full dotted name.
"""

from vcap_jax.configuration.describing import describe
from vcap_jax.configuration.dialect import dump_config, inline_yaml, parse_yaml, plain, plain_settings
from vcap_jax.configuration.errors import ConfigError
from vcap_jax.configuration.loading import load_config
from vcap_jax.configuration.schema import settings
from vcap_jax.configuration.shipped import find_config, shipped_configs

__all__ = [
    "ConfigError",
    "describe",
    "dump_config",
    "find_config",
    "inline_yaml",
    "load_config",
    "parse_yaml",
    "plain",
    "plain_settings",
    "settings",
    "shipped_configs",
]
