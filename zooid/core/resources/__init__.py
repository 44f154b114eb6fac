"""Records of what can be rented or is owned: offers, links, prices and this machine."""
