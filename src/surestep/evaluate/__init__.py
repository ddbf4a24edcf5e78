"""How the deployed rule does on instances that nothing depends on."""
