variable "name" {
  type        = string
  description = "Name of the endpoint."
  default     = "zse"

  validation {
    condition     = can(regex("^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$", var.name))
    error_message = "The name has letters, digits, dots, dashes and underscores, 63 characters at most."
  }
}

variable "endpoint_type" {
  type        = string
  description = "LOAD_BALANCER: RunPod forwards HTTP to the image as it is. QUEUE: a worker with RunPod's SDK takes jobs."
  default     = "LOAD_BALANCER"

  validation {
    condition     = contains(["LOAD_BALANCER", "QUEUE"], var.endpoint_type)
    error_message = "An endpoint is LOAD_BALANCER or QUEUE."
  }
}

variable "image" {
  type        = string
  description = "Image that zse build-image wrote; for QUEUE the worker image built on top of it."

  validation {
    condition     = length(var.image) > 0 && !can(regex("\\s|://", var.image))
    error_message = "The image is a reference such as REGISTRY/NAME:TAG, without a scheme."
  }
}

variable "registry_auth_id" {
  type        = string
  description = "Id of RunPod's registry credential. Empty: the image is public."
  default     = ""
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

variable "gpu_types" {
  type        = list(string)
  description = "GPU pools, first choice first, three at most."
  default     = ["ADA_24"]

  validation {
    condition = length(var.gpu_types) >= 1 && length(var.gpu_types) <= 3 && alltrue([
      for pool in var.gpu_types : can(regex("^(AMPERE|ADA|HOPPER|BLACKWELL)_[0-9]+(_PRO)?$", pool))
    ])
    error_message = "Name one to three pools, such as AMPERE_24, ADA_24, ADA_48_PRO or ADA_80_PRO."
  }
}

variable "regions" {
  type        = list(string)
  description = "Data centers, such as EU-RO-1. Empty: any."
  default     = []

  validation {
    condition     = alltrue([for region in var.regions : can(regex("^[A-Z]+-[A-Z]+-[0-9]+$", region))])
    error_message = "A data center looks like EU-RO-1."
  }
}

variable "min_instances" {
  type        = number
  description = "Workers that never sleep. 0 scales to zero."
  default     = 0

  validation {
    condition     = var.min_instances >= 0 && floor(var.min_instances) == var.min_instances
    error_message = "min_instances is a whole number, 0 or more."
  }
}

variable "max_instances" {
  type        = number
  description = "Workers at most."
  default     = 1

  validation {
    condition     = var.max_instances >= 1 && floor(var.max_instances) == var.max_instances
    error_message = "max_instances is a whole number, 1 or more."
  }
}

variable "concurrency" {
  type        = number
  description = "Requests that one worker works on before another is started (LOAD_BALANCER)."
  default     = 16

  validation {
    condition     = var.concurrency >= 1
    error_message = "concurrency is 1 or more."
  }
}

variable "idle_seconds" {
  type        = number
  description = "Without requests, until a worker is put to sleep; it is billed until then."
  default     = 60

  validation {
    condition     = var.idle_seconds >= 1 && var.idle_seconds <= 3600
    error_message = "idle_seconds is 1 to 3600."
  }
}

variable "startup_seconds" {
  type        = number
  description = "Until a worker that is not ready counts as broken."
  default     = 240

  validation {
    condition     = var.startup_seconds >= 1 && var.startup_seconds <= 800
    error_message = "startup_seconds is 1 to 800."
  }
}

variable "timeout_seconds" {
  type        = number
  description = "Longest job (QUEUE). A load-balanced request ends after 330 seconds whatever is said here."
  default     = 600

  validation {
    condition     = var.timeout_seconds >= 5 && var.timeout_seconds <= 86400
    error_message = "timeout_seconds is 5 to 86400."
  }
}

variable "disk_gb" {
  type        = number
  description = "Container disk; the image is unpacked there, so a model in the image counts."
  default     = 20

  validation {
    condition     = var.disk_gb >= 5
    error_message = "disk_gb is 5 or more."
  }
}

variable "flashboot" {
  type        = bool
  description = "Let RunPod keep a snapshot of a worker that went to sleep."
  default     = true
}

variable "network_volume_ids" {
  type        = list(string)
  description = "Network volumes, mounted at /runpod-volume. They bind the endpoint to their data center."
  default     = []
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
  description = "Variable of the server -> name of a secret in RunPod's account. RunPod fills it in; the value never enters the state."
  default     = {}

  validation {
    condition     = alltrue([for secret in values(var.secrets) : can(regex("^[A-Za-z0-9_]+$", secret))])
    error_message = "A secret's name has letters, digits and underscores."
  }
}
