"""Resources that can be rented or are owned: offers, links, prices and this machine."""
