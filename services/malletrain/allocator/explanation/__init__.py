"""Why a plan is as it is: its problem is solved again with one thing forced to be otherwise."""
