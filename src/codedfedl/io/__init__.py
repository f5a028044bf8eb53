"""Files: written whole or not at all, tables read strictly, misspelt names answered."""
