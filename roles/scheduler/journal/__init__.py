"""What the scheduler decided on: objects, answers and moments, in files from which its decisions can be made again (BEY-REPLAY-01)."""
