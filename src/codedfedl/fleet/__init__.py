"""The clients: their devices, how long they take, and what each step costs them."""
