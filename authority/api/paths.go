package api

// Paths of what people read and operate beside those of their tasks.
const (
	PathConsents     = "/v1/consents"
	PathNotices      = "/v1/settings/notices"
	PathAudit        = "/v1/audit"
	PathAuditExport  = "/v1/audit/export"
	PathAllTasks     = "/v1/operate/tasks"
	PathStranded     = "/v1/operate/stranded"
	PathBoard        = "/v1/operate/board"
	PathRequirements = "/v1/operate/requirements"
	PathCutOff       = "/v1/operate/cut-off"
	PathDeployment   = "/v1/operate/deployment"
)

// CutOffRequest names whom an operator cuts off: one client, or everything, which must be said.
type CutOffRequest struct {
	Client string `json:"client,omitempty"` // name
	All    bool   `json:"all,omitempty"`
}
