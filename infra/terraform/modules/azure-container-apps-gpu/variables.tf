variable "name" {
  type        = string
  description = "Name of the container app; also of what belongs to it."
  default     = "zse"

  validation {
    condition     = can(regex("^[a-z]([a-z0-9-]{0,22}[a-z0-9])?$", var.name)) && !strcontains(var.name, "--")
    error_message = "The name has lower-case letters, digits and single dashes, begins with a letter, 24 characters at most."
  }
}

variable "resource_group_name" {
  type        = string
  description = "Resource group that exists."
}

variable "region" {
  type        = string
  description = "Region with serverless GPUs, such as westus3 or swedencentral."

  validation {
    condition     = can(regex("^[a-z0-9]+$", var.region))
    error_message = "A region looks like westus3."
  }
}

variable "image" {
  type        = string
  description = "Image that zse build-image wrote. Name it by digest where you can."

  validation {
    condition     = length(var.image) > 0 && !can(regex("\\s|://", var.image))
    error_message = "The image is a reference such as REGISTRY.azurecr.io/NAME:TAG, without a scheme."
  }
}

variable "registry_server" {
  type        = string
  description = "Registry that asks for credentials, such as REGISTRY.azurecr.io; the app's identity pulls from it. Empty: public."
  default     = ""
}

variable "registry_id" {
  type        = string
  description = "Resource id of that registry: the module then grants AcrPull. Empty: you granted it."
  default     = ""

  validation {
    condition     = var.registry_id == "" || startswith(var.registry_id, "/subscriptions/")
    error_message = "A resource id begins with /subscriptions/."
  }
}

variable "model_url" {
  type        = string
  description = "Address that the server reads the model from, such as s3://BUCKET/KEY. Empty: the model is in the image."
  default     = ""

  validation {
    condition     = var.model_url == "" || can(regex("^(s3|hf|https)://[^\\s]+$", var.model_url))
    error_message = "A model address begins with s3://, hf:// or https://."
  }
}

variable "gpu_type" {
  type        = string
  description = "Serverless GPU profile: Consumption-GPU-NC24-A100 (80 GB). The T4 profile is too old for zse's kernels."
  default     = "Consumption-GPU-NC24-A100"

  validation {
    condition     = contains(["Consumption-GPU-NC24-A100"], var.gpu_type)
    error_message = "Use Consumption-GPU-NC24-A100: a T4 has compute capability 7.5, kernels need 8.0."
  }
}

variable "cpu" {
  type        = number
  description = "Processors of a replica; they come with the GPU profile, up to 24."
  default     = 24

  validation {
    condition     = var.cpu >= 1 && var.cpu <= 24
    error_message = "The profile has 24 processors."
  }
}

variable "memory" {
  type        = string
  description = "Memory of a replica, up to 220Gi."
  default     = "220Gi"

  validation {
    condition     = can(regex("^[0-9]+(\\.[0-9]+)?Gi$", var.memory))
    error_message = "Memory is written as 220Gi."
  }
}

variable "min_instances" {
  type        = number
  description = "Replicas that never sleep. 0 scales to zero."
  default     = 0

  validation {
    condition     = var.min_instances >= 0 && floor(var.min_instances) == var.min_instances
    error_message = "min_instances is a whole number, 0 or more."
  }
}

variable "max_instances" {
  type        = number
  description = "Replicas at most; your GPU quota bounds it too."
  default     = 1

  validation {
    condition     = var.max_instances >= 1 && floor(var.max_instances) == var.max_instances
    error_message = "max_instances is a whole number, 1 or more."
  }
}

variable "concurrency" {
  type        = number
  description = "Requests that one replica works on before another is started."
  default     = 16

  validation {
    condition     = var.concurrency >= 1
    error_message = "concurrency is 1 or more."
  }
}

variable "idle_seconds" {
  type        = number
  description = "Without requests, until the last replica is put to sleep."
  default     = 300

  validation {
    condition     = var.idle_seconds >= 0
    error_message = "idle_seconds is 0 or more."
  }
}

variable "startup_seconds" {
  type        = number
  description = "Until a replica that is not ready counts as broken."
  default     = 240

  validation {
    condition     = var.startup_seconds >= 1 && var.startup_seconds <= 3600
    error_message = "startup_seconds is 1 to 3600."
  }
}

variable "drain_seconds" {
  type        = number
  description = "For work in flight, from SIGTERM until the replica is killed."
  default     = 30

  validation {
    condition     = var.drain_seconds >= 6 && var.drain_seconds <= 600
    error_message = "Azure gives 600 seconds at most; the server needs 6."
  }
}

variable "port" {
  type        = number
  description = "Port that the server binds."
  default     = 8000

  validation {
    condition     = var.port >= 1 && var.port <= 65535
    error_message = "A port is a number from 1 to 65535."
  }
}

variable "env" {
  type        = map(string)
  description = "Variables of the server. They are in the state in plain text: no secrets here."
  default     = {}

  validation {
    condition     = alltrue([for name in keys(var.env) : can(regex("^[A-Za-z_][A-Za-z0-9_]*$", name)) && name != "PORT"])
    error_message = "A variable's name has letters, digits and underscores; PORT is set by var.port."
  }
}

variable "secrets" {
  type        = map(string)
  description = "Variable of the server -> Key Vault secret id, best without a version. The value never enters the state."
  default     = {}

  validation {
    condition     = alltrue([for secret in values(var.secrets) : can(regex("^https://[^/]+/secrets/[^/]+(/[^/]+)?$", secret))])
    error_message = "A secret is written as https://VAULT.vault.azure.net/secrets/NAME."
  }
}

variable "key_vault_id" {
  type        = string
  description = "Resource id of the vault of secrets: the module then grants reading it. Empty: you granted it."
  default     = ""

  validation {
    condition     = var.key_vault_id == "" || startswith(var.key_vault_id, "/subscriptions/")
    error_message = "A resource id begins with /subscriptions/."
  }
}

variable "public" {
  type        = bool
  description = "Let anyone ask who knows the address. Otherwise only what runs in the same environment reaches it."
  default     = false
}

variable "log_analytics_workspace_id" {
  type        = string
  description = "Resource id of the workspace that gets the logs. Empty: they are only streamed."
  default     = ""
}

variable "tags" {
  type        = map(string)
  description = "Tags of everything."
  default     = {}
}
