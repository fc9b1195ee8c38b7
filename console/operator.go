package console

// operatorRoutes are the operators' pages.
func (c *Console) operatorRoutes() []Route { return nil }
