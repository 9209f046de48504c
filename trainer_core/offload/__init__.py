"""Block swap: frozen weights that lie in RAM, and come to the device when their block is called."""
