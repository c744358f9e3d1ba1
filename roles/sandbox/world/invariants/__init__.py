"""What must hold in every history, whatever goes wrong: each a class with the rule that it stands for."""
