"""`koord ui`: one page that shows what koord sees and decides, with the rights of whoever looks."""
