"""`koord.api.selectors` under the name that plugins of users may know it by."""

from koord.api.selectors import *  # noqa: F403
