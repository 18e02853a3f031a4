"""What several verbs of the command use: settings, credentials, stubs, output."""
