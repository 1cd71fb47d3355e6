"""How the command line speaks: flags made from structs, help texts, output."""
