"""Which plugin classes there are: the built-in tuple, entry points, and folders given with --plugin-path."""

from __future__ import annotations

import importlib.util
import inspect
import sys
from collections.abc import Iterable, Mapping
from importlib.metadata import entry_points
from pathlib import Path

from koord.process.errors import told
from roles.scheduler.framework.interfaces import Plugin

ENTRY_POINT_GROUP = "koord.scheduler.plugins"


class PluginError(ValueError):
    """A plugin cannot be loaded or used; says which and why. `path` is the place in the configuration, where there is one."""

    def __init__(self, message: str, path: str = "") -> None:
        super().__init__(message)
        self.path = path


def profile_path(scheduler_name: str) -> str:
    """A profile in the configuration file, found by its name."""
    return f"profiles[schedulerName={scheduler_name}]"


class Registry(Mapping[str, type[Plugin]]):
    """Plugin classes by name. A name can be given once only."""

    def __init__(self, classes: Iterable[type[Plugin]] = ()) -> None:
        self._classes: dict[str, type[Plugin]] = {}
        for plugin in classes:
            self.add(plugin, "the built-in plugins")

    def add(self, plugin: type[Plugin], source: str) -> None:
        """Add a class. Raises PluginError when it has no name or the name is taken."""
        name = getattr(plugin, "name", "")
        if not isinstance(name, str) or not name:
            raise PluginError(f"plugin class {plugin.__name__} of {source} has no `name`")
        if self._classes.get(name, plugin) is not plugin:
            raise PluginError(f"plugin {name!r} of {source} is there already, from {self._classes[name].__module__}")
        self._classes[name] = plugin

    def __getitem__(self, name: str) -> type[Plugin]:
        return self._classes[name]

    def __iter__(self):  # type: ignore[no-untyped-def]
        return iter(self._classes)

    def __len__(self) -> int:
        return len(self._classes)


def load_entry_points(registry: Registry) -> None:
    """Add plugins that installed packages offer under `koord.scheduler.plugins`. Raises PluginError."""
    for entry in entry_points(group=ENTRY_POINT_GROUP):
        try:
            found = entry.load()
        except (Exception, SystemExit) as error:
            raise PluginError(f"plugin entry point {entry.name!r} ({entry.value}) cannot be loaded: {told(error)}") from error
        if not (inspect.isclass(found) and issubclass(found, Plugin)):
            raise PluginError(f"plugin entry point {entry.name!r} ({entry.value}) is no Plugin class")
        registry.add(found, f"entry point {entry.name!r}")


def load_path(registry: Registry, path: str) -> None:
    """Add the plugin classes that a Python file, or every *.py file of a folder but its tests, defines. Raises PluginError."""
    target = Path(path)
    files = sorted(file for file in target.glob("*.py") if not file.name.startswith("test_")) if target.is_dir() else [target]
    if not target.exists() or not files:
        raise PluginError(f"plugin path {path!r} is neither a Python file nor a folder with some")
    found: list[type[Plugin]] = []
    for file in files:
        name = f"koord_plugin_{file.stem}"
        spec = importlib.util.spec_from_file_location(name, file)
        if spec is None or spec.loader is None:
            raise PluginError(f"plugin file {str(file)!r} is no Python file")
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        try:
            spec.loader.exec_module(module)
        except (Exception, SystemExit) as error:  # a file that calls exit() must not end the scheduler without a word
            del sys.modules[name]
            raise PluginError(f"plugin file {str(file)!r} cannot be loaded: {told(error, str(file))}") from error
        own = [one for one in vars(module).values() if inspect.isclass(one) and issubclass(one, Plugin) and one.__module__ == name]
        for plugin in own:
            if hasattr(plugin, "name"):
                registry.add(plugin, str(file))
        found += own
    if not any(hasattr(plugin, "name") for plugin in found):
        nameless = ", ".join(plugin.__name__ for plugin in found)
        raise PluginError(
            f"plugin path {path!r} has no plugin: "
            + (f"{nameless} has no `name`" if nameless else "no class that inherits Filter, Score or another extension point")
        )
