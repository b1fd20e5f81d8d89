"""`diagnose capture ...` and `diagnose calibrate`: the collectors' commands on the main command line."""

from diagnose.cli.app import app
from diagnose.collectors.cli import calibrate_command, capture_app

app.add_typer(capture_app)
app.command("calibrate")(calibrate_command)
