"""The past of a running system as input of a replay. Pure: `malletrain.cli.journal` reads databases and services."""
